"""Rows of the batch band give way to requests that come alone, and to no more than these need."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine_core.driver import Driver, hope, jobs_in, prompt_of
from tests.engine_core.integrity import check_blocks

_PREFIX = 18


def add_batch(driver: Driver, rows: int, max_tokens: int) -> dict[int, list[int]]:
    """Jobs 0 … rows - 1, of which eight each share a prefix: 18 + 3 prompt tokens each."""
    prompts = (
        prompt_of(_PREFIX, seed=row // 8) + prompt_of(3, seed=10_000 + row) for row in range(rows)
    )
    return driver.add_each(prompts, max_tokens, batch=True)


def running_batch(driver: Driver, rows: int, max_tokens: int) -> dict[int, list[int]]:
    """These jobs, once they generate in all slots."""
    prompts = add_batch(driver, rows, max_tokens)
    while driver.scheduler._running.free_slots or driver.scheduler._running.prompts:
        driver.step()
    return prompts


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("rows", [8, pytest.param(1000, marks=pytest.mark.long)])
def test_an_arrival_behind_running_rows_is_in_the_next_step(rows: int, stages: int) -> None:
    driver = Driver(rows * 20, stages=stages, max_running=rows, max_step_tokens=4096)
    prompts = running_batch(driver, rows + 8, max_tokens=30)
    prompts[9999] = prompt_of(50, seed=7)
    driver.add(9999, prompts[9999], 30)
    assert 9999 in jobs_in(driver.step())
    assert driver.scheduler.usage().preemptions == 1
    driver.assert_texts(prompts, 30)


@pytest.mark.parametrize(("length", "step", "begin"), [(7, 128, 10), (40, 64, 2)])
def test_as_many_give_way_as_a_step_can_begin(length: int, step: int, begin: int) -> None:
    driver = Driver(400, max_running=16, max_step_tokens=step)
    prompts = running_batch(driver, 16, max_tokens=40)
    for job in range(100, 110):
        prompts[job] = prompt_of(length, seed=job)
        driver.add(job, prompts[job], 40)
    assert len(set(jobs_in(driver.step())) - set(range(16))) == begin
    assert driver.scheduler.usage().preemptions == begin
    driver.assert_texts(prompts, 40)


def test_the_youngest_gives_way_and_its_prefix_stays_cached() -> None:
    driver = Driver(400, max_running=4, max_step_tokens=64)
    prompts = running_batch(driver, 6, max_tokens=40)
    driver.add(100, prompt_of(9, seed=100), 40)
    assert 100 in jobs_in(driver.step())
    assert driver.running_batch == [0, 1, 2]
    driver.scheduler.abort(driver.submitted[-1].begun[0])
    while 3 not in jobs_in(driver.step()):
        pass
    batch = driver.submitted[-1]
    starts = zip(batch.requests, batch.starts, strict=True)
    start = next(at for request, at in starts if request.job.message.id == 3)
    assert start >= _PREFIX - _PREFIX % 4, "only its own part is computed again"
    del prompts[3]
    driver.assert_texts(prompts, 40)


def test_what_is_cached_takes_no_row_of_its_blocks() -> None:
    """Ten arrivals begin with the same 80 tokens, which another computes: each needs one block."""
    driver = Driver(80, max_running=64, max_step_tokens=512)
    common = prompt_of(80, seed=3)
    prompts = add_batch(driver, 8, max_tokens=30)
    prompts[100] = common
    driver.add(100, common, 30)
    driver.step()
    driver.step()
    assert driver.running_batch
    for job in range(101, 111):
        prompts[job] = [*common, job % 50]
        driver.add(job, prompts[job], 30)
    before, free = driver.scheduler.usage().preemptions, driver.scheduler.kv.num_free
    assert set(jobs_in(driver.step())) >= set(range(101, 111))
    assert 10 <= free < 10 * 21
    assert driver.scheduler.usage().preemptions == before
    driver.assert_texts(prompts, 30)


def test_an_arrival_has_the_token_of_a_row_that_lacks_a_block() -> None:
    """Row 1, which may be about to end, preempts none for its second block."""
    driver = Driver(5, max_running=3, max_step_tokens=3, steps_ahead=1)
    hope(driver.scheduler)
    prompts = {0: prompt_of(9)}
    driver.add(0, prompts[0], 9, batch=True)
    while not driver.scheduler._running.contexts:
        driver.step()
    for job, length in enumerate([3, 4, 1], 1):
        prompts[job] = prompt_of(length, seed=job)
        driver.add(job, prompts[job], 9)
    assert [jobs_in(driver.step()) for _ in range(4)] == [[0, 1], [0, 1, 2], [1, 0, 2], [2, 3]]
    driver.assert_texts(prompts, 9)


@pytest.mark.parametrize("ahead", [pytest.param(0, marks=pytest.mark.long), 1])
@settings(max_examples=50)
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
    prompts = add_batch(driver, 16, max_tokens=9)
    arrivals = driver.scheduler._waiting.small
    for job in range(100, 100 + data.draw(st.integers(1, 12), "arrivals")):
        for _ in range(data.draw(st.integers(0, 4), "steps")):
            if not driver.submit() and driver.batches:
                driver.finish()
            elif arrivals and arrivals.next() and driver.running_batch:
                assert driver.submitted[-1].num_tokens == step
        prompts[job] = prompt_of(data.draw(st.integers(1, 40), "prompt"), seed=job)
        driver.add(job, prompts[job], 9)
        check_blocks(driver.scheduler.kv)
    driver.assert_texts(prompts, 9)
