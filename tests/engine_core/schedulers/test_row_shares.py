"""Rows beyond a share give way, one after another takes a share up, and nothing is forgotten."""

import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.loop.jobs import Job, JobKind
from engine_core.messages import GenerateJob, KeyShare, SamplingParams
from engine_core.schedulers.cost_model import Coefficients
from engine_core.schedulers.request import Request
from engine_core.schedulers.row_shares import RowShares
from engine_core.schedulers.short_steps import REMEMBERED, STEP_SECONDS
from tests.engine_core.driver import Driver, jobs_in, prompt_of
from tests.engine_core.simulated_model import reference

PARAMS = SamplingParams(max_tokens=20)


class Shares(RowShares):
    """The shares of a decoder with so many slots; its clock is `now`."""

    def __init__(self, slots: int) -> None:
        self.now = 0.0
        super().__init__(slots, lambda: self.now)

    def come(
        self, number: int, rows: int, share: int = sys.maxsize, key: int = 0, weight: float = 1.0
    ) -> list[Request]:
        """A job arrives. Returns its first rows."""
        message = GenerateJob(number, params=PARAMS, n=rows, key=KeyShare(key, weight))
        job = Job(b"client", message, rows, 0, share=share)
        tokens = array("i", [1])
        return self.open(
            job, (Request(job, row, PARAMS, tokens, max_len=25, seed=0) for row in range(rows))
        )


def regular(rows: list[Request]) -> int:
    return sum(row.kind is JobKind.SMALL for row in rows)


def test_a_job_has_an_eighth_of_the_slots_and_a_key_less_than_all() -> None:
    shares = Shares(64)
    assert regular(shares.come(1, 100)) == 8
    of_key = [regular(shares.come(number, 8, key=7)) for number in range(2, 20)]
    assert sum(of_key) == 64 // 3, "beside those without a key, and one to come"
    assert regular(shares.come(30, 8, key=8, weight=3.0)) == 8


def test_rows_are_made_as_others_end() -> None:
    shares = Shares(16)
    rows = shares.come(1, rows=10, share=4)
    assert [row.row for row in rows] == [0, 1, 2, 3]
    promoted, made = shares.ended(rows[0])
    assert promoted is rows[2]
    assert made is not None
    assert made.row == 4
    assert {row.row for row in shares.close(rows[0].job)} == {1, 2, 3, 4}
    assert shares.ended(rows[1]) == (None, None)
    assert not any(shares.num_jobs)


@given(data=st.data())
def test_whatever_ends_the_shares_are_full_and_nothing_is_left(data: st.DataObject) -> None:
    shares = Shares(16)
    alive: list[Request] = []
    for number in range(data.draw(st.integers(1, 5))):
        share, key = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 2))
        alive += shares.come(number, data.draw(st.integers(1, 12)), share, key)
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
        counts = [0, 0, 0]
        for job in {other.job for other in alive}:
            own = [other for other in alive if other.job is job]
            assert len(own) <= job.share
            if not job.message.key.number:
                assert regular(own) == min(2, len(own))
            surplus = regular(own) < len(own)
            assert surplus <= (job.kind is JobKind.LARGE) <= (surplus or job.num_rows > 2)
            counts[job.kind] += 1
        assert shares.num_jobs == counts
    assert shares.num_jobs == [0, 0, 0]
    shares.now = REMEMBERED
    shares._forget_keys()
    left = shares._jobs, shares._keys, shares._absent, shares._weights
    assert not any(left)


@pytest.mark.parametrize(("since", "keys"), [(REMEMBERED - 0.1, 3), (REMEMBERED, 2)])
def test_a_key_whose_request_has_ended_keeps_its_share_for_a_moment(since, keys) -> None:
    shares = Shares(64)
    (honest,) = shares.come(1, 1, key=1)
    shares.close(honest.job)
    shares.now = since
    assert sum(regular(shares.come(number, 8, key=2)) for number in range(10, 22)) == 64 // keys


def test_beside_a_small_job_the_rows_of_a_large_one_fill_short_steps() -> None:
    costs = Coefficients(step=1e-3, token=1e-3, attended=1e-9, context=1e-9)
    driver = Driver(num_blocks=2000, max_running=64, max_step_tokens=512, costs=costs)
    driver.add_job(1, [prompt_of(5, seed=1)] * 200, 20)
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
    assert len(driver.finishes(1)) == 200


@pytest.mark.parametrize("shared", [0, 80])
def test_beside_a_small_job_the_prompts_of_a_large_one_fill_short_steps(shared: int) -> None:
    """Those of its regular rows, too, which leave the step to the small job's; what they share is
    computed once."""
    costs = Coefficients(step=1e-3, token=2e-4, attended=1e-9, context=1e-9)
    driver = Driver(num_blocks=4000, max_running=64, max_step_tokens=1024, costs=costs)
    prompts = [prompt_of(shared) + prompt_of(100 - shared, seed=row + 1) for row in range(50)]
    driver.add(2, prompt_of(300, seed=999), 12)
    driver.add_job(1, prompts, 2)
    driver.drain()
    first, *others = [batch for batch in driver.submitted if 2 in jobs_in(batch)]
    assert first.lens[0] == 300, "of the small job"
    # The first prompt may be whole, if others share it; some tokens go on in any case.
    assert first.num_tokens <= 300 + (100 if shared else 0) + 2 * (32 + 8)
    longest = STEP_SECONDS + (32 + 8) * costs.token
    assert max(driver.costs.seconds(batch.work) for batch in others) <= longest
    assert all(1 in jobs_in(batch) for batch in driver.submitted)
    # Some own parts begin alike by chance.
    assert 49 * shared <= driver.scheduler.usage().cached_tokens <= 49 * (shared + 1)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_row_that_arrives_takes_a_slot_of_a_large_job_at_once(stages: int) -> None:
    driver = Driver(num_blocks=400, stages=stages, max_running=16, max_step_tokens=64)
    driver.add_job(1, [prompt_of(5, seed=1)] * 200, 20, share=50)
    for _ in range(8):
        driver.turn()
    assert driver.scheduler.usage().running == 16
    assert driver.scheduler.usage().waiting == 34, "of 200, 50 exist"
    driver.add(2, prompt_of(30, seed=9), 20)
    driver.turn()
    driver.step()
    assert 2 in {job for batch in driver.submitted[-3:] for job in jobs_in(batch)}
    driver.drain()
    assert driver.text(2) == reference(prompt_of(30, seed=9), 20)
    ends = [row.row for row in driver.outputs[1] if row.finish is not None]
    assert sorted(ends) == list(range(200))
    assert driver.scheduler.usage().preemptions >= 1
    assert [job.message.id for job in driver.ended] == [2, 1]


def test_a_large_row_takes_up_a_share_while_it_waits_for_a_prompt() -> None:
    driver = Driver(num_blocks=40, max_running=16, max_step_tokens=32, block_size=128)
    prompts = [prompt_of(3), *([*prompt_of(200, seed=7), at] for at in range(3))]
    job = driver.add_job(1, prompts, 20)
    waiting = driver.scheduler._in_progress
    while not waiting:
        driver.step()
    rows = driver.scheduler._rows._jobs[job].open

    def states() -> list[tuple[int, bool, bool]]:
        return [(at, row.kind is JobKind.LARGE, row in waiting) for at, row in rows.items()]

    assert states()[1:] == [(1, False, False), (2, True, True), (3, True, True)]
    driver.scheduler.abort(job, row=0)
    assert states()[1:] == [(2, False, True), (3, True, True)]
    assert driver.scheduler.usage().waiting == 2
    driver.drain()
    for row in (1, 2, 3):
        assert driver.text(1, row) == reference(prompts[row], 20)
    assert driver.scheduler.usage().cached_tokens == 2 * 200
