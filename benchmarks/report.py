"""What a case found, and how it is shown."""

from collections.abc import Sequence

import msgspec

from server.bench.report import number


class NotMeasuredError(Exception):
    """Something that the case needs is absent; one line says what, and how to get it."""


class Budget(msgspec.Struct, frozen=True):
    """The bound of a figure: at most `limit`, or at least."""

    limit: float
    at_least: bool = False

    def is_met(self, value: float) -> bool:
        """Whether `value` is within it; the bound itself is."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {number(self.limit)}"


class Figure(msgspec.Struct, frozen=True):
    """One measured number; `note` says what a reader needs to judge it."""

    name: str
    value: float
    unit: str
    budget: Budget | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """`pass`, `miss`, or nothing where there is no budget."""
        if self.budget is None:
            return ""
        return "pass" if self.budget.is_met(self.value) else "miss"


class CaseReport(msgspec.Struct, frozen=True):
    """A case's figures, or the reason why it has none."""

    case: str
    title: str
    figures: list[Figure] = []
    not_measured: str | None = None


def table(report: CaseReport) -> str:
    """The case as text: its title, then a line a figure."""
    if report.not_measured is not None:
        return f"{report.title}\n  not measured: {report.not_measured}\n"
    rows = [_cells(figure) for figure in report.figures]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([report.title, *lines, ""])


def _cells(figure: Figure) -> tuple[str, ...]:
    budget = str(figure.budget) if figure.budget is not None else ""
    value = number(figure.value)
    return figure.name, value, figure.unit, budget, figure.verdict, figure.note


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, value, *rest = row
    name_width, value_width, *rest_widths = widths
    cells = [name.ljust(name_width), value.rjust(value_width)]
    cells += [cell.ljust(width) for cell, width in zip(rest, rest_widths, strict=True)]
    return "  " + "  ".join(cells).rstrip()
