"""Metrics with fixed label values, each series with cells of its own (`SharedCells`)."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

Kind = Literal["counter", "gauge", "histogram"]


class Count:
    __slots__ = ("_at", "_cells")

    def __init__(self, cells: "memoryview[float]", at: int) -> None:
        self._cells, self._at = cells, at

    def add(self, amount: float = 1.0) -> None:
        self._cells[self._at] += amount


class Distribution:
    """A cell for each bucket, one for what is above them, one for the sum."""

    __slots__ = ("_at", "_bounds", "_cells", "_sum")

    def __init__(self, cells: "memoryview[float]", at: int, bounds: Sequence[float]) -> None:
        self._cells, self._at, self._bounds = cells, at, bounds
        self._sum = at + len(bounds) + 1

    def observe(self, value: float) -> None:
        self._cells[self._at + bisect_left(self._bounds, value)] += 1.0
        self._cells[self._sum] += value


OTHER: Final = "other"
"""In place of a label value that has no series of its own."""


class Family:
    """One metric: a series for each combination of its labels' values."""

    def __init__(
        self,
        kind: Kind,
        name: str,
        text: str,
        labels: dict[str, tuple[str, ...]],
        bounds: Sequence[float] = (),
        *,
        shows_zeros: bool = True,
    ) -> None:
        """`name` is without the `_total` of a counter. A family of thousands of series
        (`shows_zeros` false) is shown without those that have counted nothing."""
        self.kind: Kind = kind
        self.name, self.text, self.bounds = name, text, tuple(bounds)
        self._labels, self._shows_zeros = labels, shows_zeros
        self._width = len(self.bounds) + 2 if kind == "histogram" else 1
        self._series = {values: i for i, values in enumerate(product(*labels.values()))}
        self.first = 0

    @property
    def size(self) -> int:
        """How many cells it takes, from `first` on."""
        return len(self._series) * self._width

    def count(self, cells: "memoryview[float]", *values: str) -> Count:
        """The series of these label values, in the order of the labels."""
        return Count(cells, self._at(values))

    def distribution(self, cells: "memoryview[float]", *values: str) -> Distribution:
        return Distribution(cells, self._at(values), self.bounds)

    def metric(self, cells: Sequence[float]) -> Metric:
        labels = tuple(self._labels)
        if self.kind == "histogram":
            histogram = HistogramMetricFamily(self.name, self.text, labels=labels)
            for values, own in self._shown(cells):
                histogram.add_metric(values, cumulative(self.bounds, own[:-1]), own[-1])
            return histogram
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = kind(self.name, self.text, labels=labels)
        for values, own in self._shown(cells):
            family.add_metric(values, own[0])
        return family

    def _at(self, values: tuple[str, ...]) -> int:
        return self.first + self._series[values] * self._width

    def _shown(self, cells: Sequence[float]) -> Iterator[tuple[tuple[str, ...], Sequence[float]]]:
        for values in self._series:
            at = self._at(values)
            own = cells[at : at + self._width]
            if self._shows_zeros or any(own):
                yield values, own


def place(families: Sequence[Family]) -> int:
    """Give every family its cells, one after another. Returns how many they take together."""
    size = 0
    for family in families:
        family.first = size
        size += family.size
    return size


def cumulative(bounds: Sequence[float], counts: Sequence[float]) -> list[tuple[str, float]]:
    """A histogram's buckets, from how many values were in each and above all of them."""
    texts = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(texts, accumulate(counts), strict=True))


class SharedCells:
    """float64 cells: this process's `own`, and the sums over all processes."""

    def __init__(self, size: int, files: Sequence[Path], index: int) -> None:
        """`files` are those of all API processes, of which this is number `index`, and goes on with
        what one before it has counted. None are needed for one process. Raises OSError."""
        self._files = list(files)
        self._maps: dict[Path, npt.NDArray[np.float64]] = {}
        self._own = np.zeros(size)
        if files:
            file = files[index]
            if not self._is_whole(file):
                # Whole from the start: a full disk would end who writes into it later.
                self._own.tofile(file)
            self._own = np.memmap(file, np.float64, "r+")
        self.own = self._own.data.cast("B").cast("d")

    def sums(self) -> list[float]:
        """The sum of every cell over all processes that have begun."""
        return np.sum(self.of_all(), axis=0).tolist()

    def of_all(self) -> list[npt.NDArray[np.float64]]:
        """The cells of each process that has begun."""
        for file in self._files:
            if file not in self._maps and self._is_whole(file):
                self._maps[file] = np.memmap(file, np.float64, "r")
        return list(self._maps.values()) or [self._own]

    def _is_whole(self, file: Path) -> bool:
        return file.exists() and file.stat().st_size == self._own.nbytes


class SharedCell:
    """A number that each process has, and sees of the others."""

    def __init__(self, cells: SharedCells, at: int) -> None:
        self._cells, self._at = cells, at

    def set(self, number: int) -> int:
        """Set this process's, and return it."""
        self._cells.own[self._at] = number
        return number

    def least(self) -> int:
        """The least of all processes that have begun."""
        return int(min(own[self._at] for own in self._cells.of_all()))
