"""Beside online traffic, batch work fills steps to 20 ms; without any, to the whole budget."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.loop.reports import StepWork
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.cost_model import Coefficients
from engine_core.schedulers.short_steps import STEP_SECONDS
from tests.engine_core.driver import Driver, jobs_in, prompt_of

COSTS = Coefficients(step=4e-3, token=1e-4, attended=1e-7, context=1e-6)
"""20 ms hold 160 tokens."""
LEAST = 32


def driver_of(stages: int = 1, costs: Coefficients = COSTS, **options: int) -> Driver:
    options = {"max_running": 64, "max_step_tokens": 1024} | options
    return Driver(4000 * stages, stages, costs, **options)


def add_batch(
    driver: Driver, rows: int, prompt: int = 50, output: int = 20
) -> dict[int, list[int]]:
    """Jobs 0 … rows - 1, none of which share anything."""
    return driver.add_each((prompt_of(prompt, seed=job) for job in range(rows)), output, batch=True)


def batch_tokens(batch: DecodeBatch) -> int:
    rows = zip(batch.requests, batch.lens, strict=True)
    return sum(length for request, length in rows if request.job.is_batch)


@pytest.mark.parametrize(("stages", "rows"), [(1, 1), (2, 1), (4, 1), (1, 16)])
def test_steps_are_short_while_a_client_waits_and_full_before(stages: int, rows: int) -> None:
    """Beside a large request, too, whose prompts are computed first."""
    driver = driver_of(stages)
    prompts = add_batch(driver, 60)
    assert driver.costs.seconds(driver.step().work) > STEP_SECONDS
    driver.add_job(100, [prompt_of(30, seed=100)] * rows, 20)
    first = len(driver.submitted)
    while len(driver.text(100)) < rows * 20:
        driver.step()
    steps = driver.submitted[first + (rows > 1) :]
    assert max(driver.costs.seconds(batch.work) for batch in steps) <= STEP_SECONDS + COSTS.token
    assert all(batch_tokens(batch) for batch in steps)
    driver.assert_texts(prompts, 20)


@pytest.mark.parametrize("cached", [32, 64, 128, 496])
def test_rows_behind_a_cached_prefix_never_begin_with_nothing(cached: int) -> None:
    """Their next token takes longer than the first one of a prompt, for which there is time."""
    driver = driver_of(costs=COSTS._replace(attended=1e-6 if cached < 200 else 1e-7))
    driver.add(100, prompt_of(30, seed=100), 500)
    for length in range(cached + 4, cached + 60, 9):
        driver.add_job(length, [prompt_of(length, seed=7)] * 40, 1)
        while len(driver.outputs.get(length, [])) < 40:
            driver.step()


def test_rows_of_large_jobs_share_a_short_step() -> None:
    """Four jobs, whose rows continue a long beginning. The oldest rows have the time: a token of
    each that runs would take the cost of its context many times."""
    driver = driver_of()
    driver.add(100, prompt_of(30, seed=100), 400)
    for job in range(4):
        beginning = prompt_of(800, seed=job)
        driver.add_job(job, [beginning + prompt_of(100, seed=10 + row) for row in range(40)], 1)
    while any(len(driver.finishes(job)) < 40 for job in range(4)):
        batch = driver.step()
        begun = COSTS.token * len(batch.inits) + COSTS.attended * 900 * len(batch.inits)
        assert driver.costs.seconds(batch.work) <= STEP_SECONDS + COSTS.token + begun
        assert len(batch.requests) <= len(batch.inits) + 4
    assert 100 in jobs_in(batch)


def test_steps_stay_short_for_five_seconds() -> None:
    driver = driver_of(max_running=512)
    prompts = {100: prompt_of(30, seed=100)}
    driver.add(100, prompts[100], 20)
    driver.drain()
    prompts |= add_batch(driver, 300, output=1)
    ended = driver.now
    long: list[bool] = []
    for wait in (0.0, 4.9, 5.1):
        driver.now = ended + wait
        long.append(driver.costs.seconds(driver.step().work) > STEP_SECONDS + COSTS.token)
    assert long == [False, False, True]


def test_steps_of_online_requests_alone_are_as_they_were() -> None:
    driver = driver_of()
    driver.add_each((prompt_of(200, seed=job) for job in range(12)), 3)
    assert driver.step().num_tokens == 1024


def test_an_online_prompt_is_not_limited_and_batch_work_goes_on_beside_it() -> None:
    driver = driver_of()
    prompts = add_batch(driver, 60)
    driver.step()
    prompts[100] = prompt_of(900, seed=100)
    driver.add(100, prompts[100], 20)
    batch = driver.step()
    online = [n for r, n in zip(batch.requests, batch.lens, strict=True) if not r.job.is_batch]
    assert online == [900]
    assert 0 < batch_tokens(batch) <= 2 * LEAST
    driver.assert_texts(prompts, 20)


@pytest.mark.parametrize("stages", [1, 2])
def test_rows_of_the_batch_take_turns(stages: int) -> None:
    """200 a stage take longer than a step may. Who waits for answers is in each step that can have
    its next token."""
    driver, rows = driver_of(stages, max_running=256 * stages), 200 * stages
    add_batch(driver, rows, prompt=20, output=40)
    while driver.batch_queue:
        driver.step()
    for _ in range(4):
        driver.step()
    assert driver.step().num_decodes == 200
    turns: Counter[int] = Counter()
    job = driver.add(1000, prompt_of(5, seed=5), 60)
    for _ in range(40):
        batch = driver.step()
        assert driver.costs.seconds(batch.work) <= STEP_SECONDS + COSTS.token
        turns.update(jobs_in(batch))
    assert turns.pop(1000) >= 38 // stages
    assert len(turns) == rows
    assert min(turns.values()) >= 20 // stages - 1
    driver.scheduler.abort(job)
    driver.drain()


@pytest.mark.parametrize("stages", [1, pytest.param(3, marks=pytest.mark.long)])
@settings(max_examples=60)
@given(data=st.data())
def test_no_mixed_step_is_longer_than_its_bound(stages: int, data: st.DataObject) -> None:
    """Work of clients alone may take longer; then some tokens of the batch are added."""
    driver = driver_of(stages, max_running=24, max_step_tokens=512)
    output = data.draw(st.integers(2, 12), "output")
    prompts = add_batch(driver, data.draw(st.integers(1, 60), "rows"), output=output)
    for job in range(1000, 1000 + data.draw(st.integers(1, 8), "arrivals")):
        prompts[job] = prompt_of(data.draw(st.integers(1, 300), "prompt"), seed=job)
        driver.add(job, prompts[job], output)
        for _ in range(data.draw(st.integers(1, 6), "steps")):
            if not driver.submit():
                if driver.batches:
                    driver.finish()
                continue
            batch = driver.submitted[-1]
            online = [row for row, request in enumerate(batch.requests) if not request.job.is_batch]
            prompt_rows = [row for row in online if row >= batch.num_decodes]
            work = StepWork(
                sum(batch.lens[row] for row in online) + 2 * LEAST,
                sum(batch.lens[row] * (batch.starts[row] + batch.lens[row]) for row in prompt_rows),
                batch.contexts,
            )
            least = driver.costs.seconds(work)
            assert driver.costs.seconds(batch.work) <= max(STEP_SECONDS, least) + 2e-4
    driver.assert_texts(prompts, output)
