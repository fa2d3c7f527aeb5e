"""The report as a picture."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from server.bench.errors import BenchError
from server.bench.report import Report, Row, number

_INCHES_WIDE, _INCHES_A_ROW = 9.0, 0.6


def drawing_library() -> Any:
    """matplotlib, for files only. Raises BenchError if it is not installed."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
    except ModuleNotFoundError:
        raise BenchError("--plot needs matplotlib: pip install 'penstock[bench]'") from None
    matplotlib.use("agg")
    return importlib.import_module("matplotlib.pyplot")


def plot(report: Report, file: Path) -> None:
    """Write a PNG: for each figure with a goal, how far ours, vLLM's and the floor's are on the
    way to it, longer being better; nothing where there is no such figure. Raises BenchError
    without matplotlib."""
    rows = [row for case in report.cases for row in case.rows if row.goal is not None]
    if not rows:
        return
    pyplot = drawing_library()
    figure, axes = pyplot.subplots(
        figsize=(_INCHES_WIDE, 1.5 + _INCHES_A_ROW * len(rows)), layout="constrained"
    )
    _draw(axes, rows)
    axes.set_title(f"penstock {report.machine.commit}, {report.machine.date}", fontsize=9)
    figure.savefig(file, format="png", dpi=150)
    pyplot.close(figure)


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    places = range(len(rows))
    axes.barh(places, [_reached(row, row.ours) for row in rows], height=0.5, label="ours")
    for name, marker, values in (
        ("vLLM 0.25.1", "o", [row.vllm for row in rows]),
        ("floor", "|", [row.floor for row in rows]),
    ):
        known = [
            (_reached(row, v), place)
            for row, v, place in zip(rows, values, places, strict=True)
            if v
        ]
        if known:
            x, y = zip(*known, strict=True)
            axes.scatter(x, y, marker=marker, s=80, color="black", zorder=3, label=name)
    axes.axvline(1.0, color="tab:green", label="goal")
    axes.set_yticks(places, [f"{row.label}\n{number(row.ours)} {row.unit}" for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("share of the goal")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)


def _reached(row: Row, value: float) -> float:
    assert row.goal is not None
    return value / row.goal if row.at_least else row.goal / value
