"""Rows that share a prefix are kept in one micro-batch of a pipeline."""

from collections import Counter
from itertools import pairwise

import pytest

from engine_core.schedulers.request import UNSHARED
from tests.engine_core.driver import Driver, prompt_of

_GROUPS, _DEGREE, _SLOTS = 36, 12, 200


def gathered(driver: Driver) -> float:
    """Of the prefixes of all steps, the mean share of each one's rows that are in the step."""
    shares: list[float] = []
    while True:
        while driver.submit():
            batch, running = driver.submitted[-1], driver.scheduler._running
            here = Counter(row.shared_block for row in batch.requests[: batch.num_decodes])
            all_rows = Counter(row.shared_block for row in running if row not in running.prompts)
            shares += [here[block] / all_rows[block] for block in here if block != UNSHARED]
        if not driver.batches:
            return sum(shares) / len(shares)
        driver.finish()


@pytest.mark.parametrize("stages", [2, pytest.param(3, marks=pytest.mark.long)])
def test_rows_of_a_prefix_come_together_and_micro_batches_stay_even(stages: int) -> None:
    driver = Driver(
        num_blocks=20000, stages=stages, max_running=_SLOTS, max_step_tokens=2000, steps_ahead=0
    )
    for job in range(_GROUPS * _DEGREE):
        prompt = prompt_of(80, seed=job // _DEGREE) + prompt_of(5, seed=1000 + job)
        driver.add(job, prompt, 30, batch=True)
    assert gathered(driver) > 0.85
    rows = [batch.num_decodes for batch in driver.submitted]
    full = [pair for pair in pairwise(rows) if sum(pair) > 0.9 * _SLOTS]
    assert full or stages > 2
    assert all(abs(one - other) <= 0.2 * _SLOTS for one, other in full)
    driver.assert_idle()


def test_a_group_larger_than_a_micro_batch_is_divided() -> None:
    driver = Driver(num_blocks=4000, stages=2, max_running=64, max_step_tokens=2000, steps_ahead=0)
    prefix = prompt_of(80)
    for job in range(64):
        driver.add(job, [*prefix, job], 40, batch=True)
    driver.drain()
    rows = [batch.num_decodes for batch in driver.submitted]
    assert max(rows) <= 40
