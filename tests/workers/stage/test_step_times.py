"""A step's times from its marks, taken on the host or in a device's stream."""

import torch

from tests.workers.device.test_event_clock import Host
from workers.contract.messages import StepTimes
from workers.device.event_clock import EventClock
from workers.stage.stage import DeviceTimes, step_times


def test_a_step_on_the_host_waits_computes_and_sends() -> None:
    assert step_times([7000, 7010, 7030, 7060]) == StepTimes(
        start_us=7000, idle_us=-1, wait_us=10, busy_us=20, transfer_us=30
    )
    assert step_times([7000, 7010, 7018, 7025, 7030, 7060]) == StepTimes(
        start_us=7000, idle_us=-1, wait_us=17, busy_us=13, transfer_us=30
    )


def marks(
    host: Host,
    begun: float,
    arrived: float,
    computed: float,
    sent: float,
    *,
    late_us: float = 0.0,
) -> list[torch.cuda.Event]:
    """Marks at `begun` and so many microseconds after it, after each of which a thread is late."""
    return [host.event(begun + us, late_us) for us in (0.0, arrived, computed, sent)]


def test_a_step_on_a_device_is_told_in_the_hosts_time() -> None:
    host = Host()
    times = DeviceTimes(EventClock(host.ns))
    assert times.wait(marks(host, 9e6, 20, 520, 550)) == StepTimes(
        start_us=9_000_000, idle_us=0, wait_us=20, busy_us=500, transfer_us=30
    )
    assert times.wait(marks(host, 9e6 + 700, 0, 90, 100, late_us=4000)) == StepTimes(
        start_us=9_000_700, idle_us=150, wait_us=0, busy_us=90, transfer_us=10
    )
