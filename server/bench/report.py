"""The figures beside their targets: as a table, as JSON, and as a picture.

Targets are our goals, vLLM's figures and the hardware's floors, in `benchmarks/targets.toml` of the
source checkout. Reports of an installed wheel show our own figures only.
"""

import importlib
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from server.bench.machine import SOURCE, Machine
from server.bench.measurement import BenchError, Figures, is_rate, stage_lines, unit_of
from server.bench.workloads import Case

_FILE = SOURCE / "benchmarks" / "targets.toml"
_GPUS = (1, 2, 4)

Values = tuple[float, ...]
"""For 1, 2 and 4 GPUs, one GPU a pipeline stage, as far as they are known."""


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values that one figure is compared with. `stage_layers_goal` is for a partition that was
    chosen for the case, by --stage-layers."""

    goal: Values = ()
    stage_layers_goal: Values = ()
    vllm: Values = ()
    floor: Values = ()

    def goal_of(self, stages: int, stage_layers: Sequence[int]) -> float | None:
        chosen = for_gpus(self.stage_layers_goal, stages) if stage_layers else None
        return for_gpus(self.goal, stages) if chosen is None else chosen


class Targets(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The targets: case -> figure -> target. `vllm_version` is None if there are none."""

    vllm_version: str | None = None
    cases: dict[str, dict[str, Target]] = {}

    def of(self, case: str, figure: str) -> Target:
        return self.cases.get(case, {}).get(figure, Target())


def read_targets(file: Path = _FILE) -> Targets:
    """Read the targets, none if there is no file. Raises msgspec.ValidationError."""
    if not file.exists():
        return Targets()
    return msgspec.convert(tomllib.loads(file.read_text()), Targets)


def for_gpus(values: Values, gpus: int) -> float | None:
    """The value for a number of GPUs, or None where it is not known."""
    return next((value for known, value in zip(_GPUS, values, strict=False) if known == gpus), None)


PIPELINE_HEADLINES = frozenset({"bubble_share"})
"""Figures that a report shows beside a case's own headlines, where a pipeline was measured."""

_INCHES_WIDE, _INCHES_A_ROW = 9.0, 0.6


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a case beside its target. `verdict` is `pass`, `miss`, or empty without a goal
    or with notes. `spread_percent`, of several starts, is how far the highest median of a start is
    above the lowest."""

    label: str
    figure: str
    unit: str
    ours: float
    vllm: float | None
    floor: float | None
    goal: float | None
    at_least: bool
    verdict: str
    spread_percent: float | None = None


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """A case: what was run, the figures of each run, their medians, or why it was not measured.

    `starts` are the medians of each start of the engine. `notes` list how the run differs from the
    workload of that name. `engine` has its settings, as far as they are known.
    """

    case: str
    what: str
    shape: str
    notes: list[str] = []
    engine: dict[str, Any] = {}
    runs: list[Figures] = []
    starts: list[Figures] = []
    figures: Figures = {}
    rows: list[Row] = []
    error: str | None = None


class Report(msgspec.Struct, frozen=True):
    """The content of `--json`."""

    command: str
    machine: Machine
    vllm_version: str | None
    cases: list[CaseReport] = []


def measured(
    case: Case,
    runs: Sequence[Figures],
    *,
    targets: Targets,
    notes: Sequence[str],
    engine: Mapping[str, Any],
    earlier: CaseReport | None = None,
) -> CaseReport:
    """The report of a case with these `runs` of one start, after the starts that `earlier` has. A
    pipeline has a GPU for each stage."""
    stages, stage_layers = len(engine.get("devices", ("",))), engine.get("stage_layers", ())
    so_far = earlier or _unmeasured(case)
    all_runs, starts = [*so_far.runs, *runs], [*so_far.starts, _medians(runs)]
    figures = _medians(all_runs)
    report = msgspec.structs.replace(
        so_far,
        notes=list(notes),
        engine=dict(engine),
        runs=all_runs,
        starts=starts,
        figures=figures,
        rows=[],
    )
    for figure in (*case.headlines, *(PIPELINE_HEADLINES & figures.keys())):
        target = targets.of(case.name, figure)
        goal = target.goal_of(stages, stage_layers)
        ours, at_least = figures[figure], is_rate(figure)
        verdict = ""
        if goal is not None and not notes:
            verdict = "pass" if (ours >= goal if at_least else ours <= goal) else "miss"
        row = Row(
            label=_label(case, figure, stages, stage_layers),
            figure=figure,
            unit=unit_of(figure),
            ours=ours,
            vllm=for_gpus(target.vllm, stages),
            floor=for_gpus(target.floor, stages),
            goal=goal,
            at_least=at_least,
            verdict=verdict,
            spread_percent=_spread_percent([start[figure] for start in starts]),
        )
        report.rows.append(row)
    return report


def _label(case: Case, figure: str, stages: int, stage_layers: Sequence[int]) -> str:
    """`http-gen-16 ttft p50`: the figure where it is not the only one, without the unit, which has
    a column of its own. `rand (9,9,8,6)`: the layers of stages, or how many stages there are."""
    several = figure not in case.headlines[:1] or len(case.headlines) > 1
    words = [case.name, *(figure.split("_")[:-1] if several else ())]
    if stage_layers:
        words.append(f"({','.join(map(str, stage_layers))})")
    elif stages > 1:
        words.append(f"({stages} stages)")
    return " ".join(words)


def failed(case: Case, error: Exception, earlier: CaseReport | None = None) -> CaseReport:
    """The report of a case that could not be measured, with the starts that `earlier` has."""
    return msgspec.structs.replace(earlier or _unmeasured(case), error=str(error))


def _unmeasured(case: Case) -> CaseReport:
    return CaseReport(case=case.name, what=case.what, shape=case.shape)


def _medians(runs: Sequence[Figures]) -> Figures:
    return {name: median(run[name] for run in runs) for name in runs[0]}


def _spread_percent(starts: Sequence[float]) -> float | None:
    if len(starts) == 1 or not min(starts):
        return None
    return (max(starts) / min(starts) - 1) * 100


def number(value: float, digits: int = 3) -> str:
    """Format with `digits` significant digits, and all digits before the decimal point."""
    if abs(value) >= 10 ** (digits - 1) or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


_PADDED = (str.ljust, str.rjust, str.ljust, str.rjust, str.rjust, str.rjust) + (str.ljust,) * 3
"""Numbers are on the right of their columns, words on the left."""


def table(cases: Sequence[CaseReport], vllm_version: str | None) -> str:
    """Lines for headlines, ours beside targets, then for stages, notes and errors. A column without
    an entry is left out."""
    heads = ("case", "ours", "unit", f"vLLM {vllm_version}", "floor", "goal", "", "runs", "starts")
    lines = [heads, *[_cells(case, row) for case in cases for row in case.rows]]
    columns = [
        [padded(cell, max(map(len, column))) for cell in column]
        for padded, column in zip(_PADDED, zip(*lines, strict=True), strict=True)
        if any(column[1:])
    ]
    text = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    for case in cases:
        text += [f"{case.case}: {line}" for line in stage_lines(case.figures)]
    for case in cases:
        if case.notes:
            text.append(f"{case.case}: not judged: {', '.join(case.notes)}")
        if case.error is not None:
            text.append(f"{case.case}: FAILED: {case.error}")
    return "\n".join(text) + "\n"


def _cells(case: CaseReport, row: Row) -> tuple[str, ...]:
    values = [run[row.figure] for run in case.runs]
    spread = f"{_exact(min(values))} to {_exact(max(values))}" if len(values) > 1 else ""
    bound = "≥ " if row.at_least else "≤ "
    goal = bound + _exact(row.goal) if row.goal is not None else ""
    ours = (row.label, _exact(row.ours), row.unit)
    others = (_exact(row.vllm), _exact(row.floor), goal)
    return (*ours, *others, row.verdict, spread, _starts(case, row))


def _starts(case: CaseReport, row: Row) -> str:
    if row.spread_percent is None:
        return ""
    medians = (_exact(start[row.figure]) for start in case.starts)
    return f"{', '.join(medians)} ({row.spread_percent:.1f}%)"


def _exact(value: float | None) -> str:
    """With digits enough to see on which side of a goal it is."""
    return "" if value is None else number(value, digits=4)


def details(case: CaseReport) -> str:
    """Every figure of one case in its last start, or its error, and a line for each stage."""
    if case.error is not None:
        return f"{case.case} ({case.what}): FAILED: {case.error}"
    last = case.starts[-1]
    figures = ", ".join(
        f"{name} {number(value)}" for name, value in last.items() if not name.startswith("stage_")
    )
    return "\n  ".join([f"{case.case} ({case.what}): {figures}", *stage_lines(last)])


def drawing_library() -> Any:
    """The figures of matplotlib. Raises BenchError if it is not installed."""
    try:
        return importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError:
        raise BenchError("--plot needs matplotlib: pip install 'penstock[bench]'") from None


def plot(report: Report, file: Path) -> None:
    """Write a PNG of every figure with a goal, if there is any, as a share of that: longer bars are
    better. Raises BenchError without matplotlib."""
    judged = [row for case in report.cases for row in case.rows if row.goal is not None]
    if not judged:
        return
    size = (_INCHES_WIDE, 1.5 + _INCHES_A_ROW * len(judged))
    figure = drawing_library().Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    _draw(axes, judged, f"vLLM {report.vllm_version}")
    axes.set_title(f"penstock {report.machine.commit}, {report.machine.date}", fontsize=9)
    figure.savefig(file, format="png", dpi=150)


def _draw(axes: Any, judged: Sequence[Row], vllm: str) -> None:
    heights = range(len(judged))
    axes.barh(heights, [_share(row, row.ours) for row in judged], height=0.5, label="ours")
    for marker, label, name in (("o", vllm, "vllm"), ("|", "floor", "floor")):
        shares = [_share(row, getattr(row, name)) for row in judged]
        axes.scatter(shares, heights, marker=marker, label=label, color="black", zorder=3, s=80)
    axes.axvline(1.0, color="tab:green", label="goal")
    axes.set_yticks(heights, [f"{row.label}\n{number(row.ours)} {row.unit}" for row in judged])
    axes.invert_yaxis()
    axes.set_xlabel("share of the goal")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)


def _share(row: Row, value: float | None) -> float:
    """`value` as a share of the row's goal. NaN, which is not drawn, without either."""
    if row.goal is None or not value:
        return math.nan
    return value / row.goal if row.at_least else row.goal / value
