"""A device's time on the host's clock, though threads wake up late and clocks drift."""

import random
from typing import cast

import pytest
import torch

from workers.device.event_clock import EventClock


class Event:
    """An event that a device reached at a moment of its own clock, in microseconds."""

    def __init__(self, device_us: float, host_us: float, host: "Host") -> None:
        self.device_us, self._host_us, self._host = device_us, host_us, host

    def synchronize(self) -> None:
        self._host.us = self._host_us

    def elapsed_time(self, later: "Event") -> float:
        return (later.device_us - self.device_us) / 1e3


class Host:
    """The host's clock, and a device whose clock began 5 s later and runs `drift` faster."""

    def __init__(self, drift: float = 0.0) -> None:
        self.us, self._drift = 0.0, drift

    def ns(self) -> int:
        return round(self.us * 1e3)

    def event(self, host_us: float, late_us: float = 0.0) -> torch.cuda.Event:
        """Reached at `host_us`; whoever waits for it wakes up `late_us` later."""
        device_us = (host_us - 5e6) * (1 + self._drift)
        return cast("torch.cuda.Event", Event(device_us, host_us + late_us, self))


def errors(host: Host, steps: int, step_us: float, late) -> list[float]:
    """By how much the clock is wrong about each of `steps` events, `step_us` apart."""
    clock, found = EventClock(host.ns), []
    for number in range(steps):
        at = 7e6 + number * step_us
        (device_us,) = clock.wait([host.event(at, late(number))])
        found.append(device_us + clock.lead - at)
    return found


def test_the_events_of_a_step_are_as_far_apart_as_on_the_device() -> None:
    host = Host()
    clock = EventClock(host.ns)
    assert clock.wait([host.event(7e6), host.event(7e6 + 30)]) == pytest.approx([0, 30])
    times = clock.wait([host.event(7e6 + 80), host.event(7e6 + 100, late_us=900)])
    assert times == pytest.approx([80, 100])
    assert clock.lead == pytest.approx(7e6)


def test_a_thread_that_wakes_up_late_now_and_then_does_not_matter() -> None:
    numbers = random.Random(5)
    late = [5.0, *(numbers.choice((8.0, 300.0, 5000.0)) for _ in range(2000))]
    assert max(map(abs, errors(Host(), 2000, 8000.0, late.__getitem__))) < 20


@pytest.mark.parametrize("drift", [-20e-6, 20e-6])
def test_clocks_may_drift_for_an_hour(drift: float) -> None:
    found = errors(Host(drift), 36_000, 100_000.0, lambda number: 5.0 + 200.0 * (number % 3 > 0))
    assert max(map(abs, found)) < 100


def test_after_an_hour_without_steps_the_clocks_are_compared_anew() -> None:
    host = Host(drift=20e-6)
    clock = EventClock(host.ns)
    for at in (7e6, 7e6 + 3.6e9):
        (device_us,) = clock.wait([host.event(at, late_us=5.0)])
        assert device_us + clock.lead - at == pytest.approx(5, abs=1)


def test_a_comparison_while_idle_needs_one_wake_up_in_time() -> None:
    host = Host(drift=20e-6)
    late = iter([400.0, 900.0, 6.0, *[300.0] * 100])
    clock = EventClock(host.ns)

    def recorded() -> torch.cuda.Event:
        return host.event(host.us + 10.0, next(late))

    host.us = 7e6
    clock.compare(recorded)
    (device_us,) = clock.wait([host.event(8e6, late_us=500.0)])
    assert device_us + clock.lead - 8e6 == pytest.approx(0, abs=60)
