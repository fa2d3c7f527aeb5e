"""`python -m benchmarks.plot_degrees FILE ... -o PICTURE`: requests a second by how many prompts
share a prefix, a line a FILE.

FILE is what `penstock bench offline --case all-degrees --json` writes, PICTURE an SVG or PNG. Needs
matplotlib (extra `bench`).
"""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.picture import picture

_CASE = re.compile(r"degree-(\d+)")


@dataclass(frozen=True)
class Line:
    """Requests a second by degree, measured in one way on one machine."""

    label: str
    machine: str
    rates: dict[int, float]


def read_line(file: Path) -> Line:
    """Raises SystemExit, with a line for a person, if no degree was measured."""
    report = json.loads(file.read_bytes())
    measured = {
        int(match[1]): case
        for case in report["cases"]
        if (match := _CASE.fullmatch(case["case"])) and case["runs"]
    }
    if not measured:
        raise SystemExit(f"{file}: no case degree-N")
    machine = report["machine"]
    where = ", ".join(machine["gpus"]) or machine["cpu"]
    rates = {degree: measured[degree]["figures"]["requests_per_s"] for degree in sorted(measured)}
    label = _label(next(iter(measured.values())), report["command"])
    return Line(label, f"{where}, commit {machine['commit']}, {machine['date']}", rates)


def _label(case: dict[str, Any], command: str) -> str:
    words = ["no prefix caching" if "--no-prefix-caching" in command else "shared by token"]
    if case["engine"].get("disable_cascade_attn"):
        words.append("no shared attention")
    return ", ".join(words)


def draw(lines: list[Line], file: Path) -> None:
    """Draw all lines to `file`, in the format of its ending."""
    with picture(file, height=4.5) as (axes,):
        for line in lines:
            axes.plot([*line.rates], [*line.rates.values()], marker="o", label=line.label)
        degrees = sorted({degree for line in lines for degree in line.rates})
        axes.set_xscale("log", base=2)
        axes.set_xticks(degrees, [str(degree) for degree in degrees])
        axes.set(xlabel="prompts that share a prefix", ylabel="req/s", ylim=(0, None))
        axes.set_title("\n".join(dict.fromkeys(line.machine for line in lines)), fontsize=8)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot_degrees", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PICTURE")
    options = parser.parse_args()
    draw([read_line(file) for file in options.files], options.output)


if __name__ == "__main__":
    main()
