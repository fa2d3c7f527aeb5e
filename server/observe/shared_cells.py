"""Metrics with fixed label values, each series with cells of its own (`SharedCells`)."""

import mmap
import os
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
    """One cell."""

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
        """Count one more, of this value."""
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
        """The series of these label values, of a histogram."""
        return Distribution(cells, self._at(values), self.bounds)

    def metric(self, cells: Sequence[float]) -> Metric:
        """As Prometheus shows it, with the values in `cells`."""
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


_ITEM = 8

_PID = 0  # the cell that holds the process that writes


class SharedCells:
    """float64 cells: this process's `own`, and the sums over all processes."""

    def __init__(self, size: int, files: Sequence[Path], index: int) -> None:
        """`files` are those of all API processes, of which this is number `index`. None if there is
        but one process. `size` cells are for its caller. Raises OSError."""
        self._bytes = (size + 1) * _ITEM
        self._files = list(files)
        self._maps: dict[Path, npt.NDArray[np.float64]] = {}
        memory = bytearray(self._bytes) if not files else self._mapped(files[index], create=True)
        cells = memoryview(memory).cast("B").cast("d")
        cells[_PID] = os.getpid()
        self.own = cells[1:]
        self._own = np.frombuffer(memory, np.float64)

    def sums(self, *, alive: bool = False) -> list[float]:
        """The sum of every cell, over all processes or over those that are `alive`."""
        found = [cells for cells in self._all() if not alive or is_alive(int(cells[_PID]))]
        return np.sum(found, axis=0)[1:].tolist()

    def _all(self) -> list[npt.NDArray[np.float64]]:
        """The cells of every process that has begun, which are its own with one process."""
        for file in self._files:
            if file not in self._maps and file.exists() and file.stat().st_size == self._bytes:
                self._maps[file] = np.frombuffer(self._mapped(file), np.float64)
        return list(self._maps.values()) or [self._own]

    def _mapped(self, file: Path, *, create: bool = False) -> mmap.mmap:
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        descriptor = os.open(file, flags, 0o600)
        try:
            if create:
                os.posix_fallocate(descriptor, 0, self._bytes)
            access = mmap.ACCESS_WRITE if create else mmap.ACCESS_READ
            return mmap.mmap(descriptor, self._bytes, access=access)
        finally:
            os.close(descriptor)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
