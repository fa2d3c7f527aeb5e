"""When the stages of another host did their parts, by the clock of this one."""

import random

import pytest

from engine_core.loop.host_clock import HostClock
from workers.contract.messages import StepTimes

LATENCY_US = 60
"""Of the quickest message."""


@pytest.mark.parametrize("drift", [0.0, 5e-5, -5e-5])
@pytest.mark.parametrize("ahead_us", [3_600_000_000, -3_600_000_000])
def test_times_are_told_as_exactly_as_the_quickest_messages_are_fast(
    drift: float, ahead_us: int
) -> None:
    """The other host's clock is ahead, or behind, and runs faster, or slower."""
    draw, own_us = random.Random(4), 8_000_000_000.0
    clock = HostClock(lambda: round(own_us * 1e3))
    errors: list[float] = []
    for _ in range(20_000):
        begun = own_us
        other = round(begun * (1 + drift)) + ahead_us
        own_us += 10_000 + LATENCY_US + draw.expovariate(1 / 300)
        found = clock.translated(
            StepTimes(start_us=other, wait_us=4_000, busy_us=5_000, transfer_us=1_000)
        )
        assert found.wait_us == 4_000
        errors.append(found.start_us - begun)
    assert max(errors[100:]) < LATENCY_US + 300
    assert min(errors[100:]) > 0
