"""When the events of a CUDA stream were reached, on the clock of the host."""

import time
from collections import deque
from collections.abc import Callable, Sequence

import torch

_WINDOW_US = 2e6
"""The clocks of a device and of its host drift apart by some 20 µs in this time."""


class EventClock:
    """Takes the timed events of one stream in order. Times are in microseconds.

    The device's time is the sum of the times that elapsed from one event to the next. The lead of
    the host's clock shows whenever the host has waited for an event. It is too large by the time
    that waking up takes, which is short once in a while. So the least lead of the last two seconds
    holds.
    """

    def __init__(self, host_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._host_ns = host_ns
        self._last: torch.cuda.Event | None = None
        self._device_us = 0.0
        self._leads: deque[tuple[float, float]] = deque()  # (host's time, lead), both ascending

    def wait(self, events: Sequence[torch.cuda.Event]) -> list[float]:
        """Wait until all are reached. Returns the device's time at each, 0 at the first ever.

        It waits for one after another, so that little is left to do after the last.
        """
        return [self._wait(event) for event in events]

    def _wait(self, event: torch.cuda.Event) -> float:
        event.synchronize()
        host_us = self._host_ns() / 1e3
        if self._last is not None:
            self._device_us += self._last.elapsed_time(event) * 1e3
        self._last = event
        self._compare(host_us)
        return self._device_us

    def _compare(self, host_us: float) -> None:
        lead = host_us - self._device_us
        while self._leads and self._leads[-1][1] >= lead:
            self._leads.pop()
        self._leads.append((host_us, lead))
        while self._leads[0][0] < host_us - _WINDOW_US:
            self._leads.popleft()

    @property
    def lead(self) -> float:
        """By how much the host's monotonic clock is ahead of the device's time, after a `wait`."""
        return self._leads[0][1]
