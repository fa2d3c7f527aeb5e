"""How long a stage waits, computes and sends in each step.

A stage marks four moments of each step: it begins; what it waits for has arrived; its own results
are computed; they are sent on. The times follow from these marks.
"""

import time
from dataclasses import dataclass
from typing import Protocol

import torch

from workers.contract.messages import StepTimes
from workers.device.event_clock import EventClock


class StepTimer(Protocol):
    """Takes the marks of one step after another, each where the work before it ends: when the call
    is made, or in the device's queue. No mark waits for the device."""

    def begin(self) -> None:
        """The step begins, unless it has already."""
        ...

    def arrived(self) -> None:
        """What the stage waits for is there, and the step's own work is launched."""
        ...

    def computed(self) -> None:
        """The stage's own computations are done; what follows sends them on."""
        ...


class HostTimer:
    """For computations that are done when they return: the CPU's."""

    def __init__(self) -> None:
        self._begun: int | None = None
        self._arrived = self._computed = 0

    def begin(self) -> None:
        if self._begun is None:
            self._begun = time.monotonic_ns()

    def arrived(self) -> None:
        self._arrived = time.monotonic_ns()

    def computed(self) -> None:
        self._computed = time.monotonic_ns()

    def sent(self) -> StepTimes:
        """The last mark: the step's times."""
        sent, begun = time.monotonic_ns(), self._begun or 0
        self._begun = None
        return StepTimes(
            start_us=begun // 1000,
            wait_us=(self._arrived - begun) // 1000,
            busy_us=(self._computed - self._arrived) // 1000,
            transfer_us=(sent - self._computed) // 1000,
        )


@dataclass(frozen=True, slots=True)
class DeviceMarks:
    """A step's marks in its stream."""

    begun: torch.cuda.Event
    arrived: torch.cuda.Event
    computed: torch.cuda.Event
    sent: torch.cuda.Event


class DeviceTimer:
    """For computations that are queued on the current CUDA stream."""

    def __init__(self) -> None:
        self._begun: torch.cuda.Event | None = None
        self._arrived = self._computed = torch.cuda.Event(enable_timing=True)

    def begin(self) -> None:
        if self._begun is None:
            self._begun = _recorded_event()

    def arrived(self) -> None:
        self._arrived = _recorded_event()

    def computed(self) -> None:
        self._computed = _recorded_event()

    def sent(self) -> DeviceMarks:
        """The last mark, and those before."""
        begun = self._begun or self._arrived
        self._begun = None
        return DeviceMarks(begun, self._arrived, self._computed, _recorded_event())


class DeviceTimes:
    """Times from the marks of one step after another. For one thread, which may wait."""

    def __init__(self, clock: EventClock) -> None:
        self._clock = clock
        self._end: float | None = None  # of the step before, on the device's clock

    def wait(self, marks: DeviceMarks) -> StepTimes:
        """Wait until the device has come to the last mark; the step's times."""
        begun, arrived, computed, sent = self._clock.wait(
            (marks.begun, marks.arrived, marks.computed, marks.sent)
        )
        idle = 0.0 if self._end is None else begun - self._end
        self._end = sent
        return StepTimes(
            start_us=round(begun + self._clock.lead),
            idle_us=round(idle),
            wait_us=round(arrived - begun),
            busy_us=round(computed - arrived),
            transfer_us=round(sent - computed),
        )


def _recorded_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
