"""Rows beyond a share give way, one after another takes a share up, and nothing is forgotten."""

from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.loop.jobs import Job, JobKind
from engine_core.messages import GenerateJob, KeyShare, SamplingParams
from engine_core.schedulers.cost_model import Coefficients
from engine_core.schedulers.request import Request
from engine_core.schedulers.row_shares import RowShares
from engine_core.schedulers.short_steps import REMEMBERED, STEP_SECONDS
from tests.engine_core.driver import Driver, prompt_of
from tests.engine_core.simulated_model import reference

PARAMS = SamplingParams(max_tokens=20)


def job_of(number: int, rows: int, share: int = 1 << 20, key: int = 0, weight: float = 1.0) -> Job:
    message = GenerateJob(number, params=PARAMS, n=rows, key=KeyShare(key, weight))
    return Job(b"client", message, rows, 0, share=share)


def rows_of(job: Job) -> Iterator[Request]:
    prompt = prompt_of(5, seed=job.message.id)
    for row in range(job.num_rows):
        yield Request(job, row, PARAMS, array("i", prompt), max_len=25, seed=0)


class Clock:
    """Seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def regular(rows: list[Request]) -> int:
    return sum(row.kind is JobKind.SMALL for row in rows)


def test_a_job_has_an_eighth_of_the_slots_and_a_key_less_than_all() -> None:
    shares = RowShares(64, Clock())
    assert regular(shares.open(job_of(1, 100), rows_of(job_of(1, 100)))) == 8
    of_key = [shares.open(job, rows_of(job)) for n in range(2, 20) if (job := job_of(n, 8, key=7))]
    assert sum(map(regular, of_key)) == 64 // 3, "beside those without a key, and one to come"
    other = job_of(30, 8, key=8, weight=3.0)
    assert regular(shares.open(other, rows_of(other))) == 8


def test_rows_are_made_as_others_end() -> None:
    job = job_of(1, rows=10, share=4)
    shares = RowShares(16, Clock())
    rows = shares.open(job, rows_of(job))
    assert [row.row for row in rows] == [0, 1, 2, 3]
    promoted, made = shares.ended(rows[0])
    assert promoted is rows[2]
    assert made is not None
    assert made.row == 4
    assert {row.row for row in shares.close(job)} == {1, 2, 3, 4}
    assert shares.ended(rows[1]) == (None, None)
    assert not any(shares.num_jobs)


@given(data=st.data())
def test_whatever_ends_the_shares_are_full_and_nothing_is_left(data: st.DataObject) -> None:
    clock = Clock()
    shares = RowShares(16, clock)
    alive: list[Request] = []
    for number in range(data.draw(st.integers(1, 5))):
        share, key = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 2))
        job = job_of(number, data.draw(st.integers(1, 12)), share, key)
        alive += shares.open(job, rows_of(job))
    while alive:
        request = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
        if data.draw(st.integers(0, 9)) == 0:
            closed = shares.close(request.job)
            assert request in closed
            alive = [other for other in alive if other not in closed]
            continue
        promoted, made = shares.ended(request)
        if promoted is not None:
            promoted.kind = JobKind.SMALL
        alive += [made] if made is not None else []
        for job in {other.job for other in alive}:
            own = [other for other in alive if other.job is job]
            assert len(own) <= job.share
            if not job.message.key.number:
                assert regular(own) == min(2, len(own))
        jobs = {
            other.job: regular(rows) < len(rows)
            for other in alive
            if (rows := [each for each in alive if each.job is other.job])
        }
        counts = [list(jobs.values()).count(large) for large in (False, True)]
        assert shares.num_jobs == [*counts, 0]
        assert all((job.kind is JobKind.LARGE) == large for job, large in jobs.items())
    assert shares.num_jobs == [0, 0, 0]
    assert not shares._jobs
    clock.now = REMEMBERED
    shares._forget_keys()
    assert not shares._keys
    assert not shares._absent
    assert shares._weights == 0


def test_a_key_whose_request_has_ended_keeps_its_share_for_a_moment() -> None:
    clock = Clock()
    shares = RowShares(64, clock)
    honest = job_of(1, 1, key=1)
    shares.open(honest, rows_of(honest))
    shares.close(honest)

    def given_to_another(first: int) -> int:
        jobs = [job_of(number, 8, key=2) for number in range(first, first + 12)]
        rows = sum(regular(shares.open(job, rows_of(job))) for job in jobs)
        for job in jobs:
            shares.close(job)
        return rows

    clock.now = REMEMBERED - 0.1
    assert given_to_another(10) == 64 // 3
    clock.now = REMEMBERED
    assert given_to_another(30) == 64 // 2


def test_beside_a_small_job_the_rows_of_a_large_one_fill_short_steps() -> None:
    costs = Coefficients(step=1e-3, token=1e-3, attended=1e-9, context=1e-9)
    driver = Driver(num_blocks=2000, max_running=64, max_step_tokens=512, costs=costs)
    large = job_of(1, rows=200)
    driver.scheduler.add(large, rows_of(large))
    for _ in range(8):
        driver.step()
    assert len(driver.submitted[-1].requests) == 64
    driver.add(2, prompt_of(6, seed=9), 12)
    driver.step()
    first = len(driver.submitted)
    while len(driver.text(2)) < 12:
        driver.step()
    # Eight rows are the large job's share, and one is another's; the others fill 20 ms.
    rows = [batch.num_decodes for batch in driver.submitted[first:]]
    assert 10 <= min(rows) <= max(rows) <= 20
    assert max(batch.num_tokens for batch in driver.submitted[first:]) <= 20 + 32
    driver.drain()
    assert len([row for row in driver.outputs[1] if row.finish is not None]) == 200
    driver.assert_idle()


@pytest.mark.parametrize("shared", [0, 80])
def test_beside_a_small_job_the_prompts_of_a_large_one_fill_short_steps(shared: int) -> None:
    """Those of its regular rows, too, which leave the step to the small job's; what they share is
    computed once."""
    costs = Coefficients(step=1e-3, token=2e-4, attended=1e-9, context=1e-9)
    driver = Driver(num_blocks=4000, max_running=64, max_step_tokens=1024, costs=costs)
    large = job_of(1, rows=50)
    prompts = [prompt_of(shared) + prompt_of(100 - shared, seed=row + 1) for row in range(50)]
    driver.add(2, prompt_of(300, seed=999), 12)
    driver.scheduler.add(
        large,
        [
            Request(large, row, PARAMS, array("i", prompt), max_len=102, seed=0)
            for row, prompt in enumerate(prompts)
        ],
    )
    driver.drain()
    jobs = [{request.job.message.id for request in batch.requests} for batch in driver.submitted]
    first, *others = [
        batch for batch, in_it in zip(driver.submitted, jobs, strict=True) if 2 in in_it
    ]
    assert first.lens[0] == 300, "of the small job"
    # The first prompt may be whole, if others share it; some tokens go on in any case.
    assert first.num_tokens <= 300 + (100 if shared else 0) + 2 * (32 + 8)
    longest = STEP_SECONDS + (32 + 8) * costs.token
    assert max(driver.costs.seconds(batch.work) for batch in others) <= longest
    assert all(1 in in_it for in_it in jobs)
    # Some own parts begin alike by chance.
    assert 49 * shared <= driver.scheduler.usage().cached_tokens <= 49 * (shared + 1)
    driver.assert_idle()


@pytest.mark.parametrize("stages", [1, 2])
def test_a_row_that_arrives_takes_a_slot_of_a_large_job_at_once(stages: int) -> None:
    driver = Driver(num_blocks=400, stages=stages, max_running=16, max_step_tokens=64)
    large = job_of(1, rows=200, share=50)
    driver.scheduler.add(large, rows_of(large))
    for _ in range(8):
        while driver.submit():
            pass
        driver.finish()
    assert driver.scheduler.usage().running == 16
    assert driver.scheduler.usage().waiting == 34, "of 200, 50 exist"
    driver.add(2, prompt_of(30, seed=9), 20)
    while driver.submit():
        pass
    driver.finish()
    while not driver.submit():
        driver.finish()
    begun = {
        request.job.message.id for batch in driver.submitted[-3:] for request in batch.requests
    }
    assert 2 in begun
    driver.drain()
    assert driver.text(2) == reference(prompt_of(30, seed=9), 20)
    ends = [row.row for row in driver.outputs[1] if row.finish is not None]
    assert sorted(ends) == list(range(200))
    assert driver.scheduler.usage().preemptions >= 1
    assert [job.message.id for job in driver.ended] == [2, 1]
    driver.assert_idle()


def test_a_surplus_row_takes_up_a_share_while_it_waits_for_a_prompt() -> None:
    driver = Driver(num_blocks=40, max_running=16, max_step_tokens=32, block_size=128)
    job = job_of(1, rows=4)
    prompts = [prompt_of(3), *([*prompt_of(200, seed=7), at] for at in range(3))]
    rows = [
        Request(job, row, PARAMS, array("i", prompt), max_len=len(prompt) + 20, seed=0)
        for row, prompt in enumerate(prompts)
    ]
    driver.scheduler.add(job, rows)
    waiting = driver.scheduler._in_progress
    while not waiting:
        driver.step()
    assert [(row.kind is JobKind.LARGE, row in waiting) for row in rows[1:]] == [
        (False, False),
        (True, True),
        (True, True),
    ]
    driver.scheduler.abort(job, row=0)
    assert [(row.kind is JobKind.LARGE, row in waiting) for row in rows[2:]] == [
        (False, True),
        (True, True),
    ]
    assert driver.scheduler.usage().waiting == 2
    driver.drain()
    for row in (1, 2, 3):
        tokens = [output.token for output in driver.outputs[1] if output.row == row]
        assert tokens == reference(prompts[row], 20)
    assert driver.scheduler.usage().cached_tokens == 2 * 200
    driver.assert_idle()
