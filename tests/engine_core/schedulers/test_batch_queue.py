"""How rows of the batch band are scheduled: what begins first, and how full steps are."""

import pytest

from tests.engine_core.driver import Driver, jobs_in, prompt_of

_ROWS, _OWN, _OUTPUT = 640, 10, 12
_DEGREE, _PREFIX = 8, 40


def test_no_step_only_decodes_while_a_prompt_could_run() -> None:
    """And from the first end to the last beginning, steps compute as much as rows can take."""
    slots = 32
    driver = Driver(num_blocks=4000, max_running=slots, max_step_tokens=512, steps_ahead=0)
    for row in range(_ROWS):
        prompt = prompt_of(_PREFIX, seed=row // _DEGREE) + prompt_of(_OWN, seed=1000 + row)
        driver.add(row, prompt, _OUTPUT, batch=True)
    full: list[int] = []
    while driver.submit():
        scheduler, batch = driver.scheduler, driver.submitted[-1]
        if len(driver.batch_queue):
            assert batch.num_tokens > batch.num_decodes or not scheduler._running.free_slots
            full.append(batch.num_tokens)
        driver.finish()
    computed = (_PREFIX + _DEGREE * _OWN) / _DEGREE
    balanced = slots * (1 + computed / _OUTPUT)
    steady = full[_OUTPUT:]
    assert sum(steady) / len(steady) >= 0.9 * balanced
    driver.assert_idle()


@pytest.mark.parametrize(("first", "begun"), [(0, [0, 1, 2, 3, 4]), (1, [1, 4, 2, 3])])
def test_rows_begin_in_the_order_in_which_they_come(first: int, begun: list[int]) -> None:
    """While one computes what others share, the next begins, if a slot is free."""
    driver = Driver(num_blocks=400, max_running=2, block_size=32)
    prompts = [prompt_of(21, seed=1), *([*prompt_of(20, seed=2), at] for at in (1, 2, 3))]
    prompts.append(prompt_of(21, seed=3))
    for number in range(first, 5):
        driver.add(number, prompts[number], 4, batch=True)
    driver.drain()
    assert [job.message.id for batch in driver.submitted for job in batch.begun] == begun


def test_outputs_are_expected_as_long_as_those_that_have_finished() -> None:
    driver = Driver(num_blocks=400, max_running=1)
    for number in range(3):
        driver.add(number, prompt_of(5, seed=number), number + 1, batch=True)
    driver.drain()
    driver.add(3, prompt_of(6, seed=3), 30, batch=True)
    driver.step()
    assert driver.batch_queue._expected[driver.submitted[-1].requests[0]] == 2
    driver.drain()


def test_a_row_begins_only_if_the_cache_holds_what_all_are_expected_to_need() -> None:
    """So none is preempted, though the prompts alone would fit many times."""
    driver = Driver(num_blocks=24, max_running=16)
    for number in range(12):
        driver.add(number, prompt_of(4, seed=number), 20, batch=True)
    driver.drain()
    assert driver.scheduler.usage().preemptions == 0
    assert max(len(batch.requests) for batch in driver.submitted) == 4


def test_online_prompts_go_before_those_of_the_batch_that_have_begun() -> None:
    driver = Driver(num_blocks=400, max_step_tokens=8)
    driver.add(0, prompt_of(60), 2, batch=True)
    driver.submit()
    driver.add(1, prompt_of(8, seed=5), 2)
    driver.submit()
    assert jobs_in(driver.submitted[1]) == [1]
    driver.drain()
