"""The decoder's scheduler against a simulated model: the text never depends on the schedule."""

from array import array
from collections import deque

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_core.batches import DecoderBatch
from engine_core.job import Job
from engine_core.messages import GenerateJob, RowOutput, SamplingParams
from engine_core.outbox import Outbox
from engine_core.request import Request
from engine_core.schedulers.decoder import DecoderScheduler
from tests.engine_core.configs import engine_config
from tests.engine_core.simulated_model import (
    SimulatedModel,
    SimulatedPipeline,
    next_token,
    reference,
)


class Driver:
    """A scheduler with a pipeline of simulated stages, turned by hand."""

    def __init__(
        self, num_blocks: int, stages: int = 1, max_running: int = 8, max_step_tokens: int = 32
    ) -> None:
        config = engine_config(
            num_stages=stages, max_running=max_running, max_step_tokens=max_step_tokens
        )
        self.scheduler = DecoderScheduler(config, num_blocks)
        self.pipeline = SimulatedPipeline(
            SimulatedModel(num_blocks, config.block_size, max_running)
        )
        self.depth = config.depth
        self.batches: deque[DecoderBatch] = deque()
        self.ended: list[Job] = []
        self.outbox = Outbox(self.ended.append)
        self.news: dict[int, list[RowOutput]] = {}
        self.submitted: list[DecoderBatch] = []

    def add(self, job_id: int, prompt: list[int], max_tokens: int, **params) -> Job:
        sampling = SamplingParams(max_tokens=max_tokens, **params)
        job = Job(b"client", GenerateJob(job_id, sampling), 1, 0)
        tokens = array("i", prompt)
        request = Request(job, 0, sampling, tokens, max_len=len(prompt) + max_tokens, seed=0)
        self.scheduler.add(job, [request])
        return job

    def submit(self) -> bool:
        if len(self.batches) == self.depth:
            return False
        batch = self.scheduler.schedule(self.batches[0] if self.batches else None)
        if batch is None:
            return False
        self.pipeline.submit(self.scheduler.build(batch))
        self.batches.append(batch)
        self.submitted.append(batch)
        return True

    def finish(self) -> None:
        self.scheduler.update(self.batches.popleft(), self.pipeline.next_result(), self.outbox)
        for _, outputs in self.outbox.take():
            for row in outputs.rows:
                self.news.setdefault(row.job, []).append(row)

    def drain(self) -> None:
        while True:
            while self.submit():
                pass
            if not self.batches:
                return
            self.finish()

    def text(self, job_id: int) -> list[int]:
        return [row.token for row in self.news.get(job_id, []) if row.token >= 0]

    def assert_idle(self) -> None:
        usage = self.scheduler.usage()
        assert (usage.running, usage.waiting, usage.kv_blocks_used) == (0, 0, 0)
        self.scheduler.kv.check_integrity()


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50, length).tolist()


def test_one_request_gets_the_reference_text_and_one_finish() -> None:
    driver = Driver(num_blocks=16)
    driver.add(1, prompt_of(9), max_tokens=12)
    driver.drain()
    assert driver.text(1) == reference(prompt_of(9), 12)
    assert [row.finish for row in driver.news[1]] == [None] * 11 + ["length"]
    driver.assert_idle()


def test_the_next_step_is_submitted_before_its_token_is_known() -> None:
    driver = Driver(num_blocks=16)
    driver.add(1, prompt_of(5), max_tokens=4)
    assert driver.submit()
    assert driver.submit()
    assert driver.submitted[1].starts == [5]
    assert driver.submitted[1].after == 0
    assert not driver.submit(), "at most one ahead step"


def test_a_stop_known_by_count_is_never_submitted_ahead() -> None:
    driver = Driver(num_blocks=16)
    driver.add(1, prompt_of(5), max_tokens=1)
    assert driver.submit()
    assert not driver.submit()
    driver.drain()
    assert len(driver.submitted) == 1


def test_a_stop_token_wastes_one_row_and_nothing_else() -> None:
    prompt = prompt_of(6)
    expected = reference(prompt, 30)
    stop = expected[3]
    driver = Driver(num_blocks=16)
    driver.add(1, prompt, max_tokens=30, stop_token_ids=frozenset({stop}))
    driver.drain()
    assert driver.text(1) == expected[: expected.index(stop) + 1]
    assert driver.scheduler.usage().generated_tokens == expected.index(stop) + 1
    assert driver.news[1][-1].finish == "stop"
    driver.assert_idle()


def test_ignore_eos_runs_to_the_end() -> None:
    stops = frozenset(range(50))
    driver = Driver(num_blocks=16)
    driver.add(1, prompt_of(6), max_tokens=8, stop_token_ids=stops, ignore_eos=True)
    driver.drain()
    assert driver.text(1) == reference(prompt_of(6), 8)


def test_no_token_wanted_ends_with_length() -> None:
    driver = Driver(num_blocks=16)
    driver.add(1, prompt_of(6), max_tokens=0)
    driver.drain()
    assert [(row.token, row.finish) for row in driver.news[1]] == [(-1, "length")]


def test_long_prompts_are_cut_into_chunks_and_decodes_go_on() -> None:
    driver = Driver(num_blocks=64, max_step_tokens=8)
    driver.add(1, prompt_of(4), max_tokens=20)
    driver.submit()
    driver.add(2, prompt_of(60, seed=1), max_tokens=3)
    driver.drain()
    assert max(batch.num_tokens for batch in driver.submitted) <= 8
    mixed = [batch for batch in driver.submitted if len(batch.requests) == 2]
    assert mixed, "a decode row shares a step with a chunk"
    assert driver.text(1) == reference(prompt_of(4), 20)
    assert driver.text(2) == reference(prompt_of(60, seed=1), 3)


def test_equal_prompts_share_blocks_even_within_one_step() -> None:
    driver = Driver(num_blocks=32)
    for job in (1, 2, 3):
        driver.add(job, prompt_of(10), max_tokens=4)
    driver.submit()
    assert driver.submitted[0].lens == [10, 2, 2]
    driver.drain()
    assert all(driver.text(job) == reference(prompt_of(10), 4) for job in (1, 2, 3))
    assert driver.news[2][0].cached == 8
    assert driver.scheduler.usage().cached_tokens == 16


def test_generated_blocks_are_shared_with_a_later_prompt() -> None:
    driver = Driver(num_blocks=32)
    driver.add(1, prompt_of(6), max_tokens=11)
    driver.drain()
    follow_up = prompt_of(6) + driver.text(1) + [7]
    driver.add(2, follow_up, max_tokens=3)
    driver.drain()
    assert driver.news[2][0].cached == 16
    assert driver.text(2) == reference(follow_up, 3)


def test_preemption_spares_the_oldest_and_changes_no_text() -> None:
    driver = Driver(num_blocks=8)
    for job in (1, 2, 3):
        driver.add(job, prompt_of(7, seed=job), max_tokens=20)
    driver.drain()
    assert driver.scheduler.usage().preemptions > 0
    assert all(driver.text(job) == reference(prompt_of(7, seed=job), 20) for job in (1, 2, 3))
    finished = [row.job for rows in driver.news.values() for row in rows if row.finish]
    assert finished.count(1) == finished.count(2) == finished.count(3) == 1
    assert driver.ended[0].message.id == 1
    driver.assert_idle()


def test_micro_batches_of_a_pipeline_are_disjoint_and_even() -> None:
    driver = Driver(num_blocks=64, stages=2)
    for job in range(6):
        driver.add(job, prompt_of(3, seed=job), max_tokens=12)
    for _ in range(6):
        while driver.submit():
            pass
        driver.finish()
    decodes = [b for b in driver.submitted[-6:] if all(length == 1 for length in b.lens)]
    assert decodes
    assert {len(batch.requests) for batch in decodes} == {3}
    driver.drain()
    assert all(driver.text(job) == reference(prompt_of(3, seed=job), 12) for job in range(6))


def test_an_aborted_request_leaves_no_trace() -> None:
    driver = Driver(num_blocks=16)
    job = driver.add(1, prompt_of(9), max_tokens=12)
    driver.add(2, prompt_of(9, seed=2), max_tokens=12)
    driver.submit()
    driver.submit()
    assert driver.scheduler.drop(job) == 1
    assert driver.scheduler.drop(job) == 0
    driver.drain()
    assert 1 not in driver.news
    assert driver.text(2) == reference(prompt_of(9, seed=2), 12)
    driver.assert_idle()


def test_the_simulation_notices_a_wrong_block() -> None:
    """The control of all tests above: a swapped block changes the text."""
    driver = Driver(num_blocks=16)
    driver.add(1, prompt_of(9), max_tokens=6)
    driver.submit()
    request = driver.submitted[0].requests[0]
    request.blocks[0], request.blocks[1] = request.blocks[1], request.blocks[0]
    slot = request.slot
    driver.submitted[0].updates += (slot, 0, request.blocks[0], slot, 1, request.blocks[1])
    driver.drain()
    assert driver.text(1)[0] == next_token(prompt_of(9)), "the first token came before the swap"
    driver.add(2, prompt_of(9), max_tokens=6)
    driver.drain()
    assert driver.text(2)[0] == reference(prompt_of(9), 1)[0]


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_schedule_gives_the_reference_text(stages: int, data: st.DataObject) -> None:
    """Random arrivals, aborts, budgets, cache sizes and result timings."""
    driver = Driver(
        num_blocks=data.draw(st.integers(8, 20)),
        stages=stages,
        max_running=data.draw(st.integers(1, 5)),
        max_step_tokens=data.draw(st.integers(1, 40)),
    )
    jobs: dict[int, tuple[Job, list[int], int, frozenset[int]]] = {}
    aborted: set[int] = set()
    for _ in range(data.draw(st.integers(5, 60))):
        action = data.draw(
            st.sampled_from(["add", "submit", "submit", "finish", "finish", "abort"])
        )
        if action == "add" and len(jobs) < 8:
            # Few different prompts, so that prefixes are shared; all fit the smallest cache.
            prompt = prompt_of(data.draw(st.integers(1, 18)), seed=data.draw(st.integers(0, 1)))
            max_tokens = data.draw(st.integers(0, 12))
            stops = frozenset(data.draw(st.lists(st.integers(0, 49), max_size=4)))
            job = driver.add(len(jobs), prompt, max_tokens, stop_token_ids=stops)
            jobs[job.message.id] = (job, prompt, max_tokens, stops)
        elif action == "submit":
            driver.submit()
        elif action == "finish" and driver.batches:
            driver.finish()
        elif action == "abort" and jobs:
            chosen = data.draw(st.sampled_from(sorted(jobs)))
            if driver.scheduler.drop(jobs[chosen][0]):
                aborted.add(chosen)
        driver.scheduler.kv.check_integrity()
    driver.drain()
    driver.assert_idle()
    for job_id, (_, prompt, max_tokens, stops) in jobs.items():
        expected = reference(prompt, max_tokens, stops)
        if job_id in aborted:
            assert driver.text(job_id) == expected[: len(driver.text(job_id))]
        else:
            assert driver.text(job_id) == expected
            assert [row.finish is not None for row in driver.news[job_id]].count(True) == 1
