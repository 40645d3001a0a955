"""Checks crossmesh bench at tiny sizes: fields, table and drawing of good runs, and that a wrong element of anybody, a peer
that dies, or a link that is not there makes it fail.

The command is that of CROSSMESH_TEST_BIN. Peers here are shell scripts that speak as tests/bench/peers.c does; where Open MPI
is installed, those of tests/bench/peers.toml run too.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("CROSSMESH_TEST_BIN", str(ROOT / "target/release/crossmesh"))
SHAPES = "contiguous columns-256 columns-1k columns-14k replicated experts small-1k small-256 single".split()
LIMIT = 240
ANSWERS = "echo ready; while read method seed; do echo $method 0.5 0.001 {wrong}; done"


def bench(ranks, *arguments, options=(), environment=None):
    """Exit code, what was printed without its prefixes, and errors of a bench on this many ranks."""
    command = [COMMAND, "run", "--starter", "local", "-n", str(ranks), *options, "--", COMMAND, "bench", *arguments]
    surroundings = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} | (environment or {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=surroundings, cwd=ROOT)
    lines = [line.split("] ", 1)[1] if line.startswith("[0 ") else line for line in done.stdout.splitlines()]
    return done.returncode, lines, done.stderr


def peers(folder, script):
    """A list with one peer that runs this script."""
    path = folder / "peers.toml"
    path.write_text(f"[[job]]\nname = 'script'\ncommand = ['sh', '-c', '''{script}''']\nmethods = ['one', 'two']\n")
    return str(path)


def check_shape(shape, crossmesh, other, rounds):
    """Every method has every sample, every pair a ratio."""
    assert shape["tensors"] >= 1 and shape["tensor_bytes"] > 0, shape
    assert shape["delivered_bytes"] >= shape["tensors"] * shape["tensor_bytes"], shape
    assert [method["name"] for method in shape["methods"]] == crossmesh + other, shape["methods"]
    for method in shape["methods"]:
        samples = method["samples"]
        assert method["party"] == ("crossmesh" if method["name"] in crossmesh else "peer"), method
        assert [sample["round"] for sample in samples] == list(range(1, rounds + 1)), method
        for sample in samples:
            rate = shape["delivered_bytes"] / sample["seconds"] / 1e9
            assert sample["seconds"] > 0 and abs(rate / sample["gb_per_s"] - 1) < 1e-9, sample
            assert sample["start_spread_seconds"] >= 0, sample
        rates = sorted(sample["gb_per_s"] for sample in samples)
        spread = method["gb_per_s"]
        assert spread["samples"] == rounds and rates[0] <= spread["q1"] <= spread["median"] <= spread["q3"] <= rates[-1]
    pairs = [(ratio["crossmesh"], ratio["peer"]) for ratio in shape["ratios"]]
    assert pairs == [(own, peer) for peer in other for own in crossmesh], pairs


def good_run(folder):
    """All shapes, memory kinds and routes, beside a peer that is always right."""
    code, lines, errors = bench(
        8, "reshard", "--bytes", "64KiB", "--repeat", "2", "--routes", "hierarchical,flat,gather-broadcast",
        "--peers", peers(folder, ANSWERS.format(wrong=0)), "--json", str(folder / "good.json"), "--svg", str(folder / "good.svg"),
    )  # fmt: skip
    assert code == 0, (code, lines, errors)
    results = json.loads((folder / "good.json").read_text())
    assert results["wrong_elements"] == 0 and results["repeat"] == 2 and len(results["core_of_rank"]) == 8, results
    assert [shape["name"] for shape in results["shapes"]] == SHAPES, results["shapes"]
    routes = ("hierarchical", "flat", "gather-broadcast")
    crossmesh = [f"crossmesh {memory} {route}" for memory in ("shared", "private") for route in routes]
    other = ["one (script)", "two (script)"]
    for shape in results["shapes"]:
        check_shape(shape, crossmesh, other, 2)
    # A line for each shape, for each method on it, and for each way of crossmesh in the summary.
    for name in SHAPES:
        assert sum(line.startswith(f"{name}:") for line in lines) == 1, lines
        assert sum(line.split()[:1] == [name] for line in lines) == len(crossmesh), lines
    for name in crossmesh + other:
        assert sum(line.startswith(f"  {name} ") for line in lines) == len(SHAPES), (name, lines)
    drawing = xml.etree.ElementTree.parse(folder / "good.svg").getroot()
    bars = [part for part in drawing.iter("{http://www.w3.org/2000/svg}rect") if part.get("fill", "").startswith("#")]
    assert len(bars) == len(SHAPES) * (len(crossmesh) + len(other)), len(bars)


def wrong_peer(folder):
    """A wrong element of a peer fails the bench, after the results are written."""
    code, lines, errors = bench(
        8, "reshard", "--bytes", "64KiB", "--repeat", "2", "--shapes", "experts", "--memory", "shared",
        "--peers", peers(folder, ANSWERS.format(wrong=3)), "--json", str(folder / "wrong.json"),
    )  # fmt: skip
    assert code == 1, (code, lines, errors)
    assert "wrong results: experts: one (script): 9 elements; experts: two (script): 9 elements" in errors, errors
    assert any(line.endswith("WRONG: 9 elements") for line in lines), lines
    # Two methods, in two rounds and the warm-up.
    assert json.loads((folder / "wrong.json").read_text())["wrong_elements"] == 18


def broken_peers(folder):
    """A peer that cannot be started, dies or talks nonsense ends the job by name."""
    for script, message in (("exit 3", "ended before its answer"), ("echo ready; read line; echo what", "answered")):
        code, lines, errors = bench(2, "reshard", "--shapes", "single", "--bytes", "4KiB", "--peers", peers(folder, script))
        assert code == 1 and 'peer "script"' in errors and message in errors, (code, lines, errors)
    path = folder / "absent.toml"
    path.write_text("[[job]]\nname = 'absent'\ncommand = ['/no/such/program']\nmethods = ['one']\n")
    code, lines, errors = bench(2, "reshard", "--shapes", "single", "--bytes", "4KiB", "--peers", str(path))
    assert code == 1 and "/no/such/program" in errors, (code, lines, errors)
    code, lines, errors = bench(2, "reshard", "--shapes", "contiguous", "--bytes", "4KiB")
    assert code == 2 and "needs 8 ranks" in errors, (code, lines, errors)


def mpi_peers(folder):
    """The peers of the repository move the same bytes rightly."""
    program = folder / "crossmesh-bench-peers"
    sources = sorted(str(path) for path in (ROOT / "tests/bench").glob("*.c"))
    flags = ["-std=c11", "-O3", "-Wall", "-Wextra", "-Werror", "-lpthread"]
    subprocess.run(["mpicc.openmpi", "-o", str(program), *sources, *flags], check=True, timeout=LIMIT)
    code, lines, errors = bench(
        8, "reshard", "--bytes", "256KiB", "--repeat", "1", "--memory", "shared",
        "--peers", "tests/bench/peers.toml", "--json", str(folder / "mpi.json"),
        environment={"PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert code == 0, (code, lines, errors)
    for shape in json.loads((folder / "mpi.json").read_text())["shapes"]:
        groups = {method["group"] for method in shape["methods"]}
        wanted = {"crossmesh shared", "alltoallw", "pull", "stream"} | ({"allgather"} if shape["name"] != "single" else set())
        assert groups == wanted, (shape["name"], groups)


def point_to_point(folder):
    """Both tables of each link; a link that does not join the ranks is refused."""
    sizes = [1, 4096, 1 << 20]
    jobs = (
        (["mapped", "process"], (), {}),
        (["shm"], (), {"CROSSMESH_MAPPED": "staged"}),
        (["tcp"], ("--domains", "2"), {}),
    )
    for links, options, environment in jobs:
        path = folder / "p2p.json"
        code, lines, errors = bench(
            2, "p2p", "--bytes", "1,4KiB,1MiB", "--iterations", "20", "--link", ",".join(links), "--json", str(path),
            options=options, environment=environment,
        )  # fmt: skip
        assert code == 0, (code, lines, errors)
        results = json.loads(path.read_text())["links"]
        assert [link["link"] for link in results] == links, results
        for link in results:
            assert link["wrong_bytes"] == 0
            assert [rate["bytes"] for rate in link["rates"]] == sizes, link
            assert all(rate["peak_gb_per_s"] >= rate["average_gb_per_s"] > 0 for rate in link["rates"]), link
            assert all(time["t_min"] <= time["t_typical"] <= time["p99_9"] <= time["t_max"] for time in link["latencies"])
        assert sum(line.split()[:3] == ["#bytes", "#iterations", "BW"] for line in lines) == len(links), lines
        assert sum(line.split()[:3] == ["#bytes", "#iterations", "t_min"] for line in lines) == len(links), lines
    code, lines, errors = bench(2, "p2p", "--link", "tcp")
    assert code == 2 and "--domains 2" in errors, (code, lines, errors)


def main():
    steps = [good_run, wrong_peer, broken_peers, point_to_point]
    if shutil.which("mpicc.openmpi") and shutil.which("mpirun.openmpi"):
        steps.append(mpi_peers)
    else:
        print("Open MPI is missing: the peers of tests/bench are not run")
    for step in steps:
        with tempfile.TemporaryDirectory() as folder:
            step(pathlib.Path(folder))
        print(f"{step.__name__}: ok", flush=True)


if __name__ == "__main__":
    sys.exit(main())
