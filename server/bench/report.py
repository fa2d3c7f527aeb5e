"""What was measured, beside what it is measured against: for people and as JSON."""

from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from server.bench.cases import Case, Figures, Target, for_gpus
from server.bench.machine import Machine


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a case beside its bounds. `verdict` is `pass`, `miss`, or nothing where there
    is no goal or the case was not run as it is."""

    label: str
    figure: str
    unit: str
    ours: float
    vllm: float | None
    floor: float | None
    goal: float | None
    at_least: bool
    verdict: str


class CaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """A case: what was run, the figures of each run, their medians, or why there are none.

    `notes` say in what it differs from the workload of that name; then there is no verdict.
    `engine` holds the settings that it ran with, where they are known.
    """

    case: str
    what: str
    shape: str
    notes: list[str] = []
    engine: dict[str, str | int] = {}
    runs: list[Figures] = []
    figures: Figures = {}
    rows: list[Row] = []
    error: str | None = None


class Report(msgspec.Struct, frozen=True):
    """All that `--json` keeps."""

    command: str
    machine: Machine
    cases: list[CaseReport] = []


def measured(
    case: Case,
    runs: Sequence[Figures],
    *,
    gpus: int,
    notes: Sequence[str],
    engine: Mapping[str, str | int],
) -> CaseReport:
    """The report of a case that ran as often as `runs` has entries, on so many GPUs."""
    figures = {name: median(run[name] for run in runs) for name in runs[0]}
    rows = [_row(case, target, figures, gpus, bool(notes)) for target in case.targets]
    return CaseReport(
        case=case.name,
        what=case.what,
        shape=case.shape,
        notes=list(notes),
        engine=dict(engine),
        runs=list(runs),
        figures=figures,
        rows=rows,
    )


def failed(case: Case, error: Exception) -> CaseReport:
    """The report of a case that could not be measured."""
    return CaseReport(case=case.name, what=case.what, shape=case.shape, error=str(error))


def _row(case: Case, target: Target, figures: Figures, gpus: int, differs: bool) -> Row:
    ours, goal = figures[target.figure], for_gpus(target.goal, gpus)
    return Row(
        label=case.name if len(case.targets) == 1 else f"{case.name} {_spoken(target.figure)}",
        figure=target.figure,
        unit=target.unit,
        ours=ours,
        vllm=for_gpus(target.vllm, gpus),
        floor=for_gpus(target.floor, gpus),
        goal=goal,
        at_least=target.at_least,
        verdict="" if goal is None or differs else "pass" if target.is_met(ours, goal) else "miss",
    )


def number(value: float, digits: int = 3) -> str:
    """So many significant digits, or all of the whole part."""
    if abs(value) >= 10 ** (digits - 1) or value == round(value):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


_HEAD = ("case", "ours", "unit", "vLLM 0.25.1", "floor", "goal", "", "runs")


def table(cases: Sequence[CaseReport]) -> str:
    """A line for each figure with a goal, ours beside the others'; below, notes and errors."""
    lines = [_HEAD, *[_cells(case, row) for case in cases for row in case.rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [_line(line, widths) for line in lines]
    for case in cases:
        if case.notes:
            text.append(f"{case.case}: not judged: {', '.join(case.notes)}")
        if case.error is not None:
            text.append(f"{case.case}: FAILED: {case.error}")
    return "\n".join(text) + "\n"


def _cells(case: CaseReport, row: Row) -> tuple[str, ...]:
    values = [run[row.figure] for run in case.runs]
    spread = f"{_exact(min(values))} to {_exact(max(values))}" if len(values) > 1 else ""
    goal = f"{'≥' if row.at_least else '≤'} {_exact(row.goal)}" if row.goal is not None else ""
    others = [_exact(value) if value is not None else "" for value in (row.vllm, row.floor)]
    return (row.label, _exact(row.ours), row.unit, *others, goal, row.verdict, spread)


def _exact(value: float) -> str:
    """With digits enough to see on which side of a goal it is."""
    return number(value, digits=4)


def _spoken(figure: str) -> str:
    """`ttft_p50_ms` as `ttft p50`: the unit has its own column."""
    return " ".join(figure.split("_")[:-1])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if index in (0, 2, 6, 7) else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(padded).rstrip()


def details(case: CaseReport) -> str:
    """Every figure of one case, or its error; a line for people."""
    if case.error is not None:
        return f"{case.case} ({case.what}): FAILED: {case.error}"
    said = ", ".join(f"{name} {number(value)}" for name, value in case.figures.items())
    return f"{case.case} ({case.what}): {said}"
