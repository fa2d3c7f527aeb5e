"""A step's times from its marks, taken on the host or in a device's stream."""

import time

import torch

from tests.workers.device.test_event_clock import Host
from workers.contract.messages import StepTimes
from workers.device.event_clock import EventClock
from workers.stage.stage import DeviceTimes, StepTimer, step_times


def test_a_step_on_the_host_waits_computes_and_sends() -> None:
    timer = StepTimer(time.monotonic_ns)
    before = time.monotonic_ns() // 1000
    timer.begin()
    time.sleep(0.01)
    timer.mark()
    time.sleep(0.02)
    timer.mark()
    time.sleep(0.03)
    times = times_of(timer)
    after = time.monotonic_ns() // 1000
    assert before <= times.start_us <= times.end_us <= after
    assert times.idle_us == -1
    waits = (times.wait_us, times.busy_us, times.transfer_us)
    assert all(us >= least for us, least in zip(waits, (10_000, 20_000, 30_000), strict=True))
    assert sum(waits) >= after - before - 5_000


def times_of(timer: StepTimer[int]) -> StepTimes:
    """The times of a step that ends now, as the CPU's sender makes them."""
    return step_times([mark // 1000 for mark in timer.sent()])


def marks(
    host: Host,
    begun: float,
    arrived: float,
    computed: float,
    sent: float,
    *,
    pauses: tuple[float, ...] = (),
    late_us: float = 0.0,
) -> list[torch.cuda.Event]:
    """Marks at `begun` and so many microseconds after it, after each of which a thread is late."""
    return [host.event(begun + us, late_us) for us in (0.0, arrived, *pauses, computed, sent)]


def test_a_step_on_a_device_is_told_in_the_hosts_time() -> None:
    host = Host()
    times = DeviceTimes(EventClock(host.ns))
    assert times.wait(marks(host, 9e6, 20, 520, 550)) == StepTimes(
        start_us=9_000_000, idle_us=0, wait_us=20, busy_us=500, transfer_us=30
    )
    assert times.wait(marks(host, 9e6 + 700, 0, 90, 100, late_us=4000)) == StepTimes(
        start_us=9_000_700, idle_us=150, wait_us=0, busy_us=90, transfer_us=10
    )


def test_a_late_thread_is_wrong_only_until_one_is_in_time() -> None:
    host = Host()
    times = DeviceTimes(EventClock(host.ns))
    first = times.wait(marks(host, 9e6, 0, 1000, 1000, late_us=50))
    assert (first.start_us, first.end_us) == (9_000_050, 9_001_050)
    for number in range(1, 4):
        step = times.wait(marks(host, 9e6 + 1010 * number, 0, 1000, 1000))
        assert (step.start_us, step.idle_us) == (9_000_000 + 1010 * number, 10)


def test_a_wait_for_a_mask_is_not_busy() -> None:
    host = Host()
    times = DeviceTimes(EventClock(host.ns))
    of_step = times.wait(marks(host, 9e6, 20, 520, 550, pauses=(300, 310, 400, 490)))
    assert (of_step.wait_us, of_step.busy_us, of_step.transfer_us) == (120, 400, 30)
    timer = StepTimer(time.monotonic_ns)
    for paused in (True, False):
        timer.begin()
        timer.mark()
        if paused:
            timer.mark()
            time.sleep(0.02)
            timer.mark()
        time.sleep(0.01)
        timer.mark()
        of_step = times_of(timer)
        assert (of_step.wait_us >= 20_000) == paused
        assert of_step.busy_us >= 10_000
