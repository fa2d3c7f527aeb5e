"""Times work on a device."""

import time
from collections.abc import Callable, Sequence

import torch

STEADY = 0.03
"""The difference of two measurements of one work that counts as noise: a part of the time."""

_FEWEST_ROUNDS, _MOST_ROUNDS = 2, 8
_ROUND_SECONDS, _MOST_RUNS = 1e-3, 8
"""A round repeats short work until it takes about so long."""

_PAUSE_SECONDS = 2e-3
"""Pauses keep a GPU from its power limit, which steps of few tokens mostly run far from."""

_MOST_AHEAD = 512
"""Products of 4,096 numbers square, 0.2 ms each on an H200."""

_CPU_RUNS, _CPU_SECONDS, _SLOW_SECONDS = 8, 0.15, 0.5
"""The most runs on a CPU. None begins after so many seconds, nor a second one if the first was
slow."""


class Stopwatch:
    """Times work on one device, again and again until it takes as long twice.

    spread  by how much the two shortest times of any work differ, a part of the time. More than
            `STEADY` says that something else ran on the device. A CPU, where that is usual, has
            none.
    failed  whether some work could not be timed
    """

    def __init__(self, device: torch.device) -> None:
        self.spread, self.failed = 0.0, False
        self._device, self._ahead = device, 1
        self._square: torch.Tensor | None = None

    def seconds(self, run: Callable[[], object]) -> float:
        """Seconds that a run takes at least. One before it pays for what is compiled or allocated
        then."""
        if self._device.type == "cpu":
            return _cpu_seconds(run)
        run()
        runs = round(_ROUND_SECONDS / self._round(run, 1))
        runs = max(1, min(_MOST_RUNS, runs))
        rounds = [self._round(run, runs) for _ in range(_FEWEST_ROUNDS)]
        while _spread(rounds) > STEADY and len(rounds) < _MOST_ROUNDS:
            rounds.append(self._round(run, runs))
        self.spread = max(self.spread, _spread(rounds))
        return min(rounds)

    def _round(self, run: Callable[[], object], runs: int) -> float:
        """Seconds of the device for a run, the mean of several in a row.

        They are queued while it is busy: the time to launch them, which differs by library and is
        hidden on a server, is not measured. If they were not all launched in time, once more behind
        more work. A run that waits for the device is never hidden.
        """
        time.sleep(_PAUSE_SECONDS)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        while True:
            self._keep_busy()
            start.record()
            for _ in range(runs):
                run()
            hidden = not start.query()
            stop.record()
            stop.synchronize()
            if hidden or self._ahead >= _MOST_AHEAD:
                return start.elapsed_time(stop) / 1e3 / runs
            self._ahead *= 2

    def _keep_busy(self) -> None:
        if self._square is None:
            self._square = torch.ones((4096, 4096), dtype=torch.float16, device=self._device)
        for _ in range(self._ahead):
            torch.mm(self._square, self._square)


def _spread(rounds: Sequence[float]) -> float:
    least, second = sorted(rounds)[:2]
    return second / least - 1


def _cpu_seconds(run: Callable[[], object]) -> float:
    times: list[float] = []
    while len(times) < _CPU_RUNS and sum(times) < (_CPU_SECONDS if times[1:] else _SLOW_SECONDS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)
