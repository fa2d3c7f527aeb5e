"""How long a stage waits, computes and sends in each step.

A stage marks four moments of each step: it begins; what it waits for has arrived; its own results
are computed; they are sent on. The times follow from these marks.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from workers.contract.messages import StepTimes
from workers.device.event_clock import EventClock


class HostTimer:
    """Takes the marks of one step after another, each where the work before it ends.

    For computations that are done when they return: the CPU's.
    """

    def __init__(self) -> None:
        self._begun = self._arrived = self._computed = self._paused = 0

    def begin(self) -> None:
        """The step is prepared, and begins."""
        self._begun, self._paused = time.monotonic_ns(), 0

    def arrived(self) -> None:
        """The awaited input is there."""
        self._arrived = time.monotonic_ns()

    @contextmanager
    def pausing(self) -> Generator[None]:
        """Where the block waits in the midst of the computations: for a mask. The stage counts as
        waiting once it has done what it was given before."""
        since = time.monotonic_ns()
        yield
        self._paused += time.monotonic_ns() - since

    def computed(self) -> None:
        """The stage's own computations are done; what follows sends them on."""
        self._computed = time.monotonic_ns()

    def sent(self) -> StepTimes:
        """The last mark: the step's times."""
        sent = time.monotonic_ns()
        return StepTimes(
            start_us=self._begun // 1000,
            wait_us=(self._arrived - self._begun + self._paused) // 1000,
            busy_us=(self._computed - self._arrived - self._paused) // 1000,
            transfer_us=(sent - self._computed) // 1000,
        )


@dataclass(frozen=True, slots=True)
class DeviceMarks:
    """A step's marks in its stream; the `pauses` are pairs, one event after another."""

    begun: torch.cuda.Event
    arrived: torch.cuda.Event
    pauses: tuple[torch.cuda.Event, ...]
    computed: torch.cuda.Event
    sent: torch.cuda.Event


class DeviceTimer:
    """A timer like `HostTimer`, for computations that are queued on the current CUDA stream.

    So are its marks: none waits for the device.
    """

    def __init__(self) -> None:
        self._begun = self._arrived = self._computed = torch.cuda.Event(enable_timing=True)
        self._pauses: list[torch.cuda.Event] = []

    def begin(self) -> None:
        self._begun = _recorded_event()
        self._pauses.clear()

    def arrived(self) -> None:
        self._arrived = _recorded_event()

    @contextmanager
    def pausing(self) -> Generator[None]:
        self._pauses.append(_recorded_event())
        yield
        self._pauses.append(_recorded_event())

    def computed(self) -> None:
        self._computed = _recorded_event()

    def sent(self) -> DeviceMarks:
        """The last mark, and those before."""
        pauses = tuple(self._pauses)
        return DeviceMarks(self._begun, self._arrived, pauses, self._computed, _recorded_event())


StepTimer = HostTimer | DeviceTimer


class DeviceTimes:
    """Times from the marks of one step after another. For one thread, which may wait."""

    def __init__(self, clock: EventClock) -> None:
        self._clock = clock
        self._end: float | None = None  # of the step before, on the device's clock

    def wait(self, marks: DeviceMarks) -> StepTimes:
        """Wait until the device has come to the last mark; the step's times."""
        begun, arrived, *pauses, computed, sent = self._clock.wait(
            (marks.begun, marks.arrived, *marks.pauses, marks.computed, marks.sent)
        )
        paused = sum(pauses[1::2]) - sum(pauses[::2])
        idle = 0.0 if self._end is None else begun - self._end
        self._end = sent
        return StepTimes(
            start_us=round(begun + self._clock.lead),
            idle_us=round(idle),
            wait_us=round(arrived - begun + paused),
            busy_us=round(computed - arrived - paused),
            transfer_us=round(sent - computed),
        )


def _recorded_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
