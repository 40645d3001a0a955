"""Checks slurm/report.py: it accepts what is right and refuses every way in which a result can be wrong."""

import json
import pathlib
import subprocess
import sys
import tempfile

REPORT = pathlib.Path(__file__).resolve().parents[2] / "slurm" / "report.py"
GOOD = {
    "route": "flat",
    "tensors": 3,
    "bytes": 1000,
    "inter_domain_bytes": 2000,
    "seconds": 0.5,
    "gb_per_s": 2e-6,
    "bound_seconds": None,
    "staging_bytes": 65536,
    "verified": True,
    "ranks": 8,
}


def report(*runs):
    """The exit code and output of a report over these runs, by their file names."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in runs:
            text = content if isinstance(content, str) else json.dumps(content)
            (pathlib.Path(folder) / f"{name}.json").write_text(text)
        command = [sys.executable, REPORT, "--folder", folder, "--ranks", "8", "--prefix", "demo: "]
        done = subprocess.run([*command, *(name for name, _ in runs)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


def main():
    other = GOOD | {"route": "hierarchical", "inter_domain_bytes": 1000}
    code, output = report(("flat", GOOD), ("hierarchical", other))
    lines = output.splitlines()
    assert code == 0, output
    assert lines[-1] == "demo: 3 tensors, 1000 bytes, bit-exact on 8 ranks", output
    assert lines[1].split()[:4] == ["flat", "2.0", "KiB", "2.00"], output
    assert lines[2].split()[:4] == ["hierarchical", "1000", "B", "1.00"], output
    for wrong in (
        {"verified": False},
        {"verified": None},
        {"verified": "true"},
        {"route": "single"},
        {"ranks": 4},
        {"tensors": 2},
        {"bytes": 999},
    ):
        code, output = report(("flat", GOOD), ("hierarchical", other | wrong))
        assert code == 1 and "bit-exact" not in output, (wrong, output)
    for field in GOOD:
        code, output = report(("flat", {key: value for key, value in GOOD.items() if key != field}))
        assert code == 1 and "bit-exact" not in output, (field, output)
    code, output = report(("flat", "{"))
    assert code == 1 and "bit-exact" not in output, output
    print("the report accepts what is right and refuses what is wrong")


if __name__ == "__main__":
    main()
