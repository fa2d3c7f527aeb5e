"""Rows of the batch band give way to requests that come alone, and to no more than these need."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine_core.driver import Driver, prompt_of
from tests.engine_core.integrity import check_blocks
from tests.engine_core.simulated_model import reference

_PREFIX = 18


def add_batch(driver: Driver, rows: int, max_tokens: int, degree: int = 8) -> list[list[int]]:
    """Jobs 0 … rows - 1, of which `degree` each share a prefix: 18 + 3 prompt tokens each."""
    prompts: list[list[int]] = []
    for row in range(rows):
        prefix = prompt_of(_PREFIX, seed=row // degree)
        prompts.append(prefix + prompt_of(3, seed=10_000 + row))
        driver.add(row, prompts[-1], max_tokens, batch=True)
    return prompts


def run_until_slots_are_taken(driver: Driver) -> None:
    while driver.scheduler._running.free_slots or driver.scheduler._running.prompts:
        if not driver.submit():
            driver.finish()


def rows_of_next_step(driver: Driver) -> set[int]:
    """The jobs of the next step that can be submitted."""
    while not driver.submit():
        driver.finish()
    return {request.job.message.id for request in driver.submitted[-1].requests}


def assert_texts(driver: Driver, prompts: dict[int, list[int]], max_tokens: int) -> None:
    driver.drain()
    for job, prompt in prompts.items():
        assert driver.text(job) == reference(prompt, max_tokens)
        assert sum(row.finish is not None for row in driver.outputs[job]) == 1
    driver.assert_idle()


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("rows", [8, 1000])
def test_an_arrival_behind_running_rows_is_in_the_next_step(rows: int, stages: int) -> None:
    driver = Driver(rows * 20, stages=stages, max_running=rows, max_step_tokens=4096)
    prompts = dict(enumerate(add_batch(driver, rows + 8, max_tokens=30)))
    run_until_slots_are_taken(driver)
    prompts[9999] = prompt_of(50, seed=7)
    driver.add(9999, prompts[9999], 30)
    assert 9999 in rows_of_next_step(driver)
    assert driver.scheduler.usage().preemptions == 1
    assert_texts(driver, prompts, 30)


def test_all_that_wait_begin_in_one_step() -> None:
    driver = Driver(400, max_running=16, max_step_tokens=128)
    prompts = dict(enumerate(add_batch(driver, 16, max_tokens=40)))
    run_until_slots_are_taken(driver)
    for job in range(100, 110):
        prompts[job] = prompt_of(7, seed=job)
        driver.add(job, prompts[job], 40)
    assert rows_of_next_step(driver) >= set(range(100, 110))
    assert driver.scheduler.usage().preemptions == 10
    assert_texts(driver, prompts, 40)


def test_no_more_give_way_than_a_step_can_begin() -> None:
    driver = Driver(400, max_running=16, max_step_tokens=64)
    prompts = dict(enumerate(add_batch(driver, 16, max_tokens=40)))
    run_until_slots_are_taken(driver)
    for job in range(100, 110):
        prompts[job] = prompt_of(40, seed=job)
        driver.add(job, prompts[job], 40)
    rows_of_next_step(driver)
    assert driver.scheduler.usage().preemptions == 2
    assert_texts(driver, prompts, 40)


def test_the_youngest_gives_way_and_its_prefix_stays_cached() -> None:
    driver = Driver(400, max_running=4, max_step_tokens=64)
    prompts = dict(enumerate(add_batch(driver, 6, max_tokens=40)))
    run_until_slots_are_taken(driver)
    driver.add(100, prompt_of(9, seed=100), 40)
    assert 100 in rows_of_next_step(driver)
    assert driver.running_batch == [0, 1, 2]
    driver.scheduler.abort(driver.submitted[-1].begun[0])
    while 3 not in rows_of_next_step(driver):
        pass
    batch = driver.submitted[-1]
    starts = zip(batch.requests, batch.starts, strict=True)
    start = next(at for request, at in starts if request.job.message.id == 3)
    assert start >= _PREFIX - _PREFIX % 4, "only its own part is computed again"
    del prompts[3]
    assert_texts(driver, prompts, 40)


def test_what_is_cached_takes_no_row_of_its_blocks() -> None:
    """Ten arrivals begin with the same 80 tokens, which another computes: each needs one block."""
    driver = Driver(80, max_running=64, max_step_tokens=512)
    common = prompt_of(80, seed=3)
    prompts = dict(enumerate(add_batch(driver, 8, max_tokens=30)))
    prompts[100] = common
    driver.add(100, common, 30)
    rows_of_next_step(driver)
    rows_of_next_step(driver)
    assert driver.running_batch
    for job in range(101, 111):
        prompts[job] = [*common, job % 50]
        driver.add(job, prompts[job], 30)
    before, free = driver.scheduler.usage().preemptions, driver.scheduler.kv.num_free
    assert rows_of_next_step(driver) >= set(range(101, 111))
    assert 10 <= free < 10 * 21
    assert driver.scheduler.usage().preemptions == before
    assert_texts(driver, prompts, 30)


@pytest.mark.parametrize("ahead", [pytest.param(0, marks=pytest.mark.long), 1])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_arrival_waits_beside_a_row_of_the_batch(ahead: int, data: st.DataObject) -> None:
    """Unless the step is full, or it has been preempted itself and is in flight."""
    step = data.draw(st.sampled_from([24, 64]), "step")
    driver = Driver(
        data.draw(st.sampled_from([24, 40, 100]), "blocks"),
        max_running=data.draw(st.sampled_from([3, 8]), "slots"),
        max_step_tokens=step,
        steps_ahead=ahead,
    )
    expected = {
        job: reference(prompt, 9) for job, prompt in enumerate(add_batch(driver, 16, max_tokens=9))
    }
    arrivals = driver.scheduler._waiting.regular
    for job in range(100, 100 + data.draw(st.integers(1, 12), "arrivals")):
        for _ in range(data.draw(st.integers(0, 4), "steps")):
            if not driver.submit() and driver.batches:
                driver.finish()
            elif arrivals and arrivals.next() and driver.running_batch:
                assert driver.submitted[-1].num_tokens == step
        prompt = prompt_of(data.draw(st.integers(1, 40), "prompt"), seed=job)
        driver.add(job, prompt, 9)
        expected[job] = reference(prompt, 9)
        check_blocks(driver.scheduler.kv)
    driver.drain()
    assert {job: driver.text(job) for job in expected} == expected
    driver.assert_idle()
