"""Small jobs wait for little beside large ones, which never starve."""

import pytest

from engine_core.schedulers.cost_model import Coefficients
from tests.engine_core.schedulers.test_prefill_only import Steps

SLOW = Coefficients(step=1e-3, token=1.6e-4, attended=0.0, context=0.0)
"""A small encoder on a CPU: 2,048 tokens take a third of a second."""


def on_cpu(stages: int = 1) -> Steps:
    return Steps(max_step_tokens=2048, stages=stages, max_model_len=512, costs=SLOW)


def rows_of(steps: Steps, job: int) -> list[int]:
    """How many rows of it each step had."""
    return [sum(number == job for number, _ in rows) for rows in steps.order]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("length", [5, 200, 512])
def test_a_small_job_joins_the_next_step_however_many_large_ones_wait(
    stages: int, length: int
) -> None:
    steps = on_cpu(stages)
    for job in range(50):
        steps.add(job, [length] * 200)
    for job in range(100, 110):
        steps.step()
        assert steps.scheduler.is_open() or stages > 1 or job == 100
        steps.add(job, [12])
        steps.step()
        assert (job, 0) in steps.order[-1]


def test_steps_are_short_beside_small_jobs_and_for_five_seconds_after_an_answer() -> None:
    steps = on_cpu()
    steps.add(1, [100] * 2000)
    steps.step()
    steps.add(2, [12])
    for _ in range(100):
        steps.step()
    assert [work.tokens for work in steps.works[:3]] == [2000, 512, 500]
    lengthened = next(at for at, work in enumerate(steps.works[1:], 1) if work.tokens > 600)
    elapsed = sum(steps.costs.seconds(work) for work in steps.works[2:lengthened])
    assert elapsed == pytest.approx(5, abs=0.1)


def test_on_a_fast_device_a_short_step_takes_twenty_milliseconds() -> None:
    steps = Steps(max_step_tokens=65_536, max_model_len=512)
    steps.add(1, [512] * 2000)
    steps.add(2, [12])
    steps.step()
    assert 0.9 <= steps.works[0].tokens * 4e-7 / 20e-3 <= 1.02


def test_small_jobs_alone_fill_whole_steps() -> None:
    steps = on_cpu()
    for job in range(1000):
        steps.add(job, [16])
    steps.drain()
    assert all(work.tokens == 2048 for work in steps.works[:-1])


@pytest.mark.parametrize("length", [16, 512])
def test_a_flood_of_small_jobs_leaves_a_large_one_a_row_of_every_step(length: int) -> None:
    steps = on_cpu()
    steps.add(0, [length] * 100)
    for job in range(1, 3000):
        steps.add(job, [16])
    for _ in range(20):
        steps.step()
    assert all(rows_of(steps, 0))
    assert all(512 <= work.tokens <= 1024 for work in steps.works)


def test_a_flood_of_a_lower_priority_value_is_not_delayed_by_a_large_job() -> None:
    steps = on_cpu()
    steps.add(0, [16] * 100, priority=1)
    for job in range(1, 500):
        steps.add(job, [16])
    for _ in range(10):
        steps.step()
    assert not any(rows_of(steps, 0))


def test_large_jobs_of_which_a_step_holds_few_take_turns() -> None:
    steps = on_cpu()
    for job in range(20):
        steps.add(job, [512] * 20)
    for _ in range(10):
        steps.step()
    assert [sum(rows_of(steps, job)) for job in range(20)] == [2] * 20
