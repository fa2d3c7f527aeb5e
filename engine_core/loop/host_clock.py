"""The times of stages on other hosts, by the clock of this one."""

import time
from collections.abc import Callable

import msgspec

from workers.contract.messages import StepTimes

_DRIFT = 1e-4
"""By how much the clocks of two hosts may drift apart, more than any do."""


class HostClock:
    """Translates one stage's times, in order, to this host's monotonic clock.

    A report comes after the step's end, mostly by no more than a message takes. So the least lead
    of this host's clock that a report shows holds, as far as drift cannot have raised it.
    """

    def __init__(self, own_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._own_ns = own_ns
        self._lead, self._last = float("inf"), 0

    def translated(self, times: StepTimes) -> StepTimes:
        """The times of a step whose report has just come, with a known start, by this clock."""
        drift = _DRIFT * (times.end_us - self._last)
        self._last = times.end_us
        self._lead = min(self._own_ns() / 1e3 - times.end_us, self._lead + drift)
        return msgspec.structs.replace(times, start_us=round(times.start_us + self._lead))
