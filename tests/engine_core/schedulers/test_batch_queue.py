"""How rows of the batch band are scheduled: what begins first, and how full steps are."""

from engine_core.schedulers.batches import DecodeBatch
from tests.engine_core.driver import Driver, prompt_of

_ROWS, _OWN, _OUTPUT = 640, 10, 12
_DEGREE, _PREFIX = 8, 40


def many_that_share(driver: Driver) -> None:
    """640 rows, of which 8 each share a prefix: 40 + 10 prompt tokens, 12 of output."""
    for number in range(_ROWS // _DEGREE):
        prefix = prompt_of(_PREFIX, seed=number)
        for member in range(_DEGREE):
            own = prompt_of(_OWN, seed=1000 + number * _DEGREE + member)
            driver.add(number * _DEGREE + member, prefix + own, _OUTPUT, batch=True)


def decodes_only(batch: DecodeBatch) -> bool:
    return batch.num_tokens == batch.num_decodes


def test_no_step_only_decodes_while_a_prompt_could_run() -> None:
    """And from the first end to the last beginning, steps compute as much as rows can take."""
    slots = 32
    driver = Driver(num_blocks=4000, max_running=slots, max_step_tokens=512, steps_ahead=0)
    many_that_share(driver)
    full: list[int] = []
    while driver.submit():
        scheduler, batch = driver.scheduler, driver.submitted[-1]
        if len(driver.batch_queue):
            assert not decodes_only(batch) or not scheduler._running.free_slots
            full.append(batch.num_tokens)
        driver.finish()
    computed = (_PREFIX + _DEGREE * _OWN) / _DEGREE
    balanced = slots * (1 + computed / _OUTPUT)
    steady = full[_OUTPUT:]
    assert sum(steady) / len(steady) >= 0.9 * balanced
    driver.assert_idle()


def test_rows_begin_in_the_order_in_which_they_come() -> None:
    driver = Driver(num_blocks=400, max_running=2, block_size=32)
    driver.add(0, prompt_of(21, seed=1), 4, batch=True)
    for number in (1, 2, 3):
        driver.add(number, [*prompt_of(20, seed=2), number], 4, batch=True)
    driver.add(4, prompt_of(21, seed=3), 2, batch=True)
    driver.drain()
    begun = [job.message.id for batch in driver.submitted for job in batch.begun]
    assert begun == [0, 1, 2, 3, 4]


def test_while_one_computes_what_others_share_the_next_begins() -> None:
    driver = Driver(num_blocks=400, max_running=2, block_size=32)
    for number in (1, 2):
        driver.add(number, [*prompt_of(20, seed=2), number], 4, batch=True)
    driver.add(3, prompt_of(21, seed=3), 4, batch=True)
    driver.drain()
    begun = [job.message.id for batch in driver.submitted for job in batch.begun]
    assert begun == [1, 3, 2]


def test_outputs_are_expected_as_long_as_those_that_have_finished() -> None:
    driver = Driver(num_blocks=400, max_running=1)
    for number in range(3):
        driver.add(number, prompt_of(5, seed=number), number + 1, batch=True)
    driver.drain()
    driver.add(3, prompt_of(6, seed=3), 30, batch=True)
    driver.step()
    assert driver.batch_queue._expected[driver.submitted[-1].requests[0]] == 2
    driver.drain()
    driver.assert_idle()


def test_a_row_begins_only_if_the_cache_holds_what_all_are_expected_to_need() -> None:
    """So none is preempted, though the prompts alone would fit many times."""
    driver = Driver(num_blocks=24, max_running=16)
    for number in range(12):
        driver.add(number, prompt_of(4, seed=number), 20, batch=True)
    driver.drain()
    assert driver.scheduler.usage().preemptions == 0
    assert max(len(batch.requests) for batch in driver.submitted) == 4
    driver.assert_idle()


def test_online_prompts_go_before_those_of_the_batch_that_have_begun() -> None:
    driver = Driver(num_blocks=400, max_step_tokens=8)
    driver.add(0, prompt_of(60), 2, batch=True)
    driver.submit()
    driver.add(1, prompt_of(8, seed=5), 2)
    driver.submit()
    assert [request.job.message.id for request in driver.submitted[1].requests] == [1]
    driver.drain()
    driver.assert_idle()
