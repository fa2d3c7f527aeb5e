"""A GPU's clock beside the host's: how far apart they may be believed to be."""

import random
import time

import pytest
import torch

from workers.device.event_clock import EventClock

pytestmark = pytest.mark.gpu

MOST_US = 100
EVENTS = 600


def now_us() -> float:
    return time.monotonic_ns() / 1e3


def test_when_an_event_was_reached_is_known_though_the_thread_is_often_late() -> None:
    """An event of an idle stream is reached between its recording and the end of a wait for it."""
    clock, numbers = EventClock(), random.Random(4)
    errors: list[float] = []
    for number in range(EVENTS):
        time.sleep(numbers.choice((0.0, 0.005, 0.02)) if number % 200 else 3.0)
        torch.cuda.synchronize()
        event = torch.cuda.Event(enable_timing=True)
        earliest = now_us()
        event.record()
        event.synchronize()
        latest = now_us()
        if number % 200 > 5:  # whoever waits for it may be as late as this
            time.sleep(numbers.choice((0.0, 0.0005, 0.005)))
        (device_us,) = clock.wait([event])
        told = device_us + clock.lead
        errors.append(max(earliest - told, told - latest, 0.0))
    print(f"the clocks' error: at most {max(errors):.0f} µs")
    assert max(errors) < MOST_US
