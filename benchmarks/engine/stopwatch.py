"""Where the time of a step goes, function by function."""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Stopwatch:
    """Times wrapped functions between two calls of `lap`; one lap is one step.

    A function's time includes that of the wrapped functions that it calls, and 0.1 µs a call for
    reading the clock twice.
    """

    def __init__(self) -> None:
        self._laps: defaultdict[str, list[int]] = defaultdict(list)
        self._current: defaultdict[str, int] = defaultdict(int)

    def wrap(
        self, part: str, function: Callable[_Parameters, _Result]
    ) -> Callable[_Parameters, _Result]:
        """`function`, with its time counted as `part`."""
        clock, current = time.perf_counter_ns, self._current

        def timed(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            started = clock()
            result = function(*args, **kwargs)
            current[part] += clock() - started
            return result

        return timed

    def lap(self) -> None:
        """A step is over: keep its times."""
        for part, nanoseconds in self._current.items():
            self._laps[part].append(nanoseconds)
        self._current.clear()

    def forget(self) -> None:
        """Drop every lap so far."""
        self._laps.clear()
        self._current.clear()

    def median(self, part: str) -> float:
        """The median of the laps in which the part was called, in µs."""
        return float(np.median(self._laps[part])) / 1e3

    def total(self, part: str) -> float:
        """The sum over all laps, in µs."""
        return sum(self._laps[part]) / 1e3
