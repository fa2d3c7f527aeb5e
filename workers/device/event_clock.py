"""When the events of a CUDA stream were reached, on the clock of the host."""

import time
from collections.abc import Callable, Sequence

import torch

COMPARE_EVERY_S = 1.0
"""Seconds without an event after which `EventClock.compare` keeps the error by drift small."""

_DRIFT = 3e-5
"""By how much the clocks of a device and of its host may drift apart, more than any do."""

_COMPARISONS = 8


class EventClock:
    """Takes the timed events of one stream in order. Times are in microseconds.

    The device's time is the sum of the times that elapsed from one event to the next.

    lead  by how much the host's monotonic clock is ahead of the device's time. It shows whenever
          the host has waited for an event, but too large by the time that waking up takes, which
          is short once in a while. So the least lead holds, as far as drift cannot have raised it.
    """

    def __init__(self, host_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._host_ns = host_ns
        self._last: torch.cuda.Event | None = None
        self._device_us, self.lead = 0.0, float("inf")

    def wait(self, events: Sequence[torch.cuda.Event]) -> list[float]:
        """Wait until all are reached. Returns the device's time at each, 0 at the first ever.

        It waits for one after another, so that little is left to do after the last.
        """
        return [self._wait(event) for event in events]

    def compare(self, record: Callable[[], torch.cuda.Event]) -> None:
        """Wait for some events that are reached as soon as they are recorded, in an idle stream."""
        for _ in range(_COMPARISONS):
            self._wait(record())

    def _wait(self, event: torch.cuda.Event) -> float:
        event.synchronize()
        host_us = self._host_ns() / 1e3
        elapsed_us = 0.0 if self._last is None else self._last.elapsed_time(event) * 1e3
        self._last = event
        self._device_us += elapsed_us
        self.lead = min(host_us - self._device_us, self.lead + _DRIFT * elapsed_us)
        return self._device_us
