"""`python -m benchmarks.batches.plot_beside FILE -o PICTURE`: online requests beside a batch, and
the batch's rows a second, over time.

FILE is what `python -m benchmarks.batches.beside --json` writes. Needs matplotlib (extra `bench`).
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.picture import picture


def draw(figures: dict[str, Any], file: Path) -> None:
    """Draw to `file`, in the format of its ending."""
    with picture(file, rows=2, height=5.5) as (above, below):
        at = [request["at"] for request in figures["requests"]]
        for name in ("ttft_ms", "tpot_ms"):
            values = [request[name] for request in figures["requests"]]
            above.plot(at, values, ".", markersize=3, label=name.removesuffix("_ms").upper())
            above.axhline(figures["idle"][f"{name.removesuffix('_ms')}_p50_ms"], linewidth=0.8)
        above.set(ylabel="ms (lines: without the batch)", ylim=(0, None))
        rows = figures["rows_by_second"]
        below.plot(range(len(rows)), rows, linewidth=0.8, label="batch")
        below.axhline(figures["batch"]["alone_requests_per_s"], linewidth=0.8)
        below.set(xlabel="seconds", ylabel="req/s (line: the batch alone)", ylim=(0, None))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.batches.plot_beside", description=__doc__
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PICTURE")
    given = parser.parse_args()
    draw(json.loads(given.file.read_bytes()), given.output)


if __name__ == "__main__":
    main()
