"""`python -m benchmarks.http.plot_concurrency FILE -o PICTURE`: requests a second, and what each
takes, by how many come at once.

FILE is what `python -m benchmarks --only concurrency --json` writes, PICTURE an SVG or PNG. Needs
matplotlib (extra `bench`).
"""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path

from benchmarks.picture import picture

_NAME = re.compile(r"(\d+) at once: (.+)")


def read_lines(file: Path) -> dict[str, dict[int, float]]:
    """The figures of each kind, by the number of requests at once.

    Raises SystemExit, with a line for a person, if there are none.
    """
    lines: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for case in json.loads(file.read_bytes())["cases"]:
        for figure in case["figures"]:
            if case["case"] == "concurrency" and (match := _NAME.fullmatch(figure["name"])):
                lines[match[2]][int(match[1])] = figure["value"]
    if not lines:
        raise SystemExit(f"{file}: no figures of concurrency")
    return dict(lines)


def draw(lines: dict[str, dict[int, float]], title: str, file: Path) -> None:
    """Draw to `file`, in the format of its ending: rates above, latencies below."""
    with picture(file, rows=2, height=5.5) as (above, below):
        for name, values in lines.items():
            axes = below if name.startswith("latency") else above
            axes.plot([*values], [*values.values()], marker="o", label=name)
        ticks = sorted(lines["requests"])
        below.set_xscale("log", base=2)
        below.set_xticks(ticks, [str(tick) for tick in ticks])
        below.set(xlabel="requests at once", ylabel="ms")
        below.set_yscale("log")
        above.set(ylabel="requests/s", ylim=(0, None))
        above.set_title(title, fontsize=8)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.http.plot_concurrency", description=__doc__
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PICTURE")
    given = parser.parse_args()
    machine = json.loads(given.file.read_bytes())["machine"]
    title = f"{machine['cpu']}, commit {machine['commit']}, {machine['date']}"
    draw(read_lines(given.file), title, given.output)


if __name__ == "__main__":
    main()
