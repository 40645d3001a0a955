"""Prints what `crossmesh refit --json` wrote, one line a route, and fails unless every byte was verified.

report.py --folder FOLDER [--ranks N] [--prefix TEXT] ROUTE...   reads FOLDER/ROUTE.json

The last line is `PREFIX<tensors> tensors, <bytes> bytes, bit-exact on <ranks> ranks`.
"""

import argparse
import json
import pathlib
import sys

HEADINGS = ("route", "crossed domains", "of the model", "seconds", "GB/s", "bound, s", "staging a rank")


def size(count):
    """A byte count for a person."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def number(value):
    """A figure that may be absent (no network was crossed)."""
    return "-" if value is None else f"{value:.4g}"


def row(run):
    """One line of the table."""
    crossed, total = run["inter_domain_bytes"], run["bytes"]
    return (
        run["route"],
        size(crossed),
        f"{crossed / total:.2f} x" if total else "-",
        number(run["seconds"]),
        number(run["gb_per_s"]),
        number(run["bound_seconds"]),
        size(run["staging_bytes"]),
    )


def print_table(rows):
    """Columns as wide as they need to be; the first to the left, figures to the right."""
    table = [HEADINGS, *rows]
    widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
    for line in table:
        cells = [line[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        print("  ".join(cells).rstrip())


def faults(route, run, first, ranks):
    """What is wrong with one run, as sentences."""
    if run["verified"] is not True:
        yield f"{route}: not verified"
    if run["route"] != route:
        yield f"{route}: the run took route {run['route']}"
    if ranks is not None and run["ranks"] != ranks:
        yield f"{route}: {run['ranks']} ranks instead of {ranks}"
    for field in ("tensors", "bytes", "ranks"):
        if run[field] != first[field]:
            yield f"{route}: {run[field]} {field}, but {first['route']} had {first[field]}"


def main():
    parser = argparse.ArgumentParser(description="Prints refit results as a table and checks them.")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--prefix", default="")
    parser.add_argument("routes", nargs="+")
    options = parser.parse_args()
    try:
        runs = [json.loads((options.folder / f"{route}.json").read_text()) for route in options.routes]
        print_table([row(run) for run in runs])
        wrong = [
            fault for route, run in zip(options.routes, runs) for fault in faults(route, run, runs[0], options.ranks)
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        wrong = [f"unreadable result: {error!r}"]
    if wrong:
        print("\n".join(f"report: {fault}" for fault in wrong), file=sys.stderr)
        return 1
    run = runs[-1]
    print(f"{options.prefix}{run['tensors']} tensors, {run['bytes']} bytes, bit-exact on {run['ranks']} ranks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
