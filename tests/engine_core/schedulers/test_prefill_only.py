"""Encode jobs in the core: which rows run first, what is truncated, what is returned."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.loop.jobs import Job
from engine_core.loop.outbox import Outbox
from engine_core.loop.reports import StepWork
from engine_core.messages import (
    NO_KEY,
    Accepted,
    EncodedRows,
    EncodeJob,
    Failed,
    KeyShare,
    Outputs,
    Tokenization,
)
from engine_core.schedulers.cost_model import Coefficients, CostModel
from engine_core.schedulers.prefill_only import EncoderRows, PrefillOnlyScheduler
from tests.engine_core.configs import ENCODER, execution_config
from tests.engine_core.fake_transport import Engine
from workers.contract.messages import EmbedOutput

A = b"a"
BGE_BASE = Coefficients(step=1e-4, token=4e-7, attended=8e-11, context=0.0)


class Steps:
    """A scheduler whose steps run at once; `order` has (job, row) as they were submitted."""

    def __init__(
        self,
        max_step_tokens: int = 32,
        stages: int = 1,
        max_model_len: int = 16,
        costs: Coefficients = BGE_BASE,
    ) -> None:
        config = execution_config(
            num_stages=stages,
            model=ENCODER,
            task="embed",
            max_model_len=max_model_len,
            max_step_tokens=max_step_tokens,
        )
        self.costs = CostModel(costs)
        self.now = 0.0
        self.scheduler = PrefillOnlyScheduler(config, 0, lambda: self.now, self.costs)
        self.outbox = Outbox(lambda job: None)
        self.order: list[list[tuple[int, int]]] = []
        self.jobs: dict[int, Job] = {}
        self.works: list[StepWork] = []

    def add(
        self,
        job_id: int,
        lens: list[int],
        priority: int = 0,
        *,
        batch: bool = False,
        key: KeyShare = NO_KEY,
    ) -> None:
        items = [b""] * len(lens)
        message = EncodeJob(job_id, ids=items, priority=priority, batch=batch, key=key)
        job = self.jobs[job_id] = Job(A, message, len(lens), sum(lens))
        tokens = np.zeros(sum(lens), np.int32)
        rows = EncoderRows(tokens, np.empty(0, np.uint8), np.array(lens, np.int32))
        self.scheduler.add(job, rows)

    def step(self) -> bool:
        batch = self.scheduler.schedule(None)
        if batch is None:
            return False
        self.order.append(
            [(job.message.id, row) for job, rows in batch.parts for row in rows.tolist()]
        )
        assert sum(batch.lens) == len(batch.tokens)
        self.works.append(batch.work)
        self.now += self.costs.seconds(batch.work)
        pooled = np.zeros((len(batch.lens), 2), np.float32)
        output = EmbedOutput(batch.step, vectors=pooled.tobytes())
        self.scheduler.update(batch, output, self.outbox)
        return True

    def drain(self) -> list[int]:
        """The jobs in the order in which their last rows ran."""
        while self.step():
            pass
        last = {job: at for at, rows in enumerate(self.order) for job, _ in rows}
        return sorted(last, key=lambda job: (last[job], job))


def test_a_lower_priority_value_goes_first() -> None:
    steps = Steps()
    steps.add(1, [16] * 4)
    steps.add(2, [16] * 4, priority=5)
    steps.add(3, [16] * 4, priority=-5)
    assert steps.drain() == [3, 1, 2]
    assert [{job for job, _ in rows} for rows in steps.order] == [{3}, {3}, {1}, {1}, {2}, {2}]


def test_a_job_without_a_row_for_ten_seconds_goes_before_every_priority_for_one_step() -> None:
    steps = Steps()
    steps.add(1, [16] * 5)
    for job in range(2, 10):
        steps.now += 4
        steps.add(job, [16] * 2, priority=-1)
        steps.step()
    turns = [(at, rows) for at, rows in enumerate(steps.order) if any(job == 1 for job, _ in rows)]
    assert turns == [(2, [(1, 0), (1, 1)]), (5, [(1, 2), (1, 3)])]


def test_what_the_first_leave_goes_to_the_next() -> None:
    steps = Steps()
    steps.add(1, [8] * 4, priority=1)
    steps.add(2, [16], priority=0)
    assert steps.drain() == [2, 1]
    assert steps.order[0] == [(2, 0), (1, 0), (1, 1)]


def test_equals_share_a_step() -> None:
    steps = Steps()
    steps.add(1, [8] * 10, priority=3)
    steps.add(2, [8] * 2, priority=3)
    assert steps.drain() == [2, 1]
    assert sorted(steps.order[0]) == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_dropped_job_leaves_its_priority() -> None:
    steps = Steps()
    steps.add(1, [16] * 4, priority=-1)
    steps.add(2, [16] * 2)
    assert steps.step()
    assert steps.scheduler.abort(steps.jobs[1]) == 2
    assert steps.scheduler.abort(steps.jobs[1]) == 2  # it waits no longer: nothing happens
    steps.drain()
    assert steps.order == [[(1, 0), (1, 1)], [(2, 0), (2, 1)]]
    usage = steps.scheduler.usage()
    assert (usage.running, usage.waiting) == (0, 0)


@settings(max_examples=100, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(
            st.lists(st.integers(1, 16), min_size=1, max_size=12),
            st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_every_row_runs_once_in_steps_of_the_budget(jobs: list[tuple[list[int], int]]) -> None:
    steps = Steps()
    for job_id, (lens, priority) in enumerate(jobs):
        steps.add(job_id, lens, priority)
    while steps.step():
        queue, rows = steps.scheduler._waiting, steps.scheduler._rows
        places = [(job.message.priority, job.kind) for job in queue]
        assert places == sorted(places)
        assert {*queue} == {*rows}
        new = [rows[job].next_tokens for job in queue if not rows[job].cursor]
        assert queue.num_tokens == sum(new)
    ran = sorted(row for rows in steps.order for row in rows)
    assert ran == [(job, row) for job, (lens, _) in enumerate(jobs) for row in range(len(lens))]
    for rows in steps.order:
        assert sum(jobs[job][0][row] for job, row in rows) <= 32
    usage = steps.scheduler.usage()
    assert (usage.running, usage.waiting) == (0, 0)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("lens", [[512] * 700, [64, 512] * 350, [32] * 9000])
def test_the_steps_of_a_pipeline_take_equal_time_to_the_last(stages: int, lens: list[int]) -> None:
    steps = Steps(max_step_tokens=16_384, stages=stages, max_model_len=512)
    steps.add(1, lens)
    steps.drain()
    times = [steps.costs.seconds(work) for work in steps.works]
    assert max(times[:-1]) <= 1.1 * min(times[:-1])
    assert len(times) >= 4 * stages, "the stages take turns"
    assert max(work.tokens for work in steps.works) <= 16_384


@pytest.mark.parametrize("stages", [2, 4])
def test_many_small_jobs_end_without_a_tail_of_tiny_steps(stages: int) -> None:
    steps = Steps(max_step_tokens=16_384, stages=stages, max_model_len=512)
    for job in range(2000):
        steps.add(job, [32])
    steps.drain()
    assert all(work.tokens >= 512 for work in steps.works[:-1])
    assert len(steps.works) <= 16 * stages
    assert (steps.scheduler._budget._whole_costs, steps.scheduler._waiting_rows) == (0, 0)


def test_rows_of_one_length_fill_a_pipelines_steps_to_the_brim() -> None:
    steps = Steps(max_step_tokens=16_384, stages=2, max_model_len=512)
    for job in range(64):
        steps.add(job, [512] * 64)
    steps.drain()
    assert {work.tokens for work in steps.works} == {16_384}


def test_short_rows_beside_long_ones_are_no_more_than_a_step_may_have() -> None:
    steps = Steps(max_step_tokens=16_384, stages=2, max_model_len=8192)
    steps.add(1, [8192] * 40)
    steps.add(2, [8] * 40_000, priority=-1)
    steps.drain()
    assert max(work.tokens for work in steps.works) == 16_384


@settings(max_examples=100, deadline=None)
@given(jobs=st.lists(st.tuples(st.integers(1, 6), st.integers(-2, 2)), min_size=1, max_size=8))
def test_rows_of_one_length_run_by_priority(jobs: list[tuple[int, int]]) -> None:
    steps = Steps()
    for job_id, (count, priority) in enumerate(jobs):
        steps.add(job_id, [16] * count, priority)
    steps.drain()
    priorities = [jobs[job][1] for rows in steps.order for job, _ in rows]
    assert priorities == sorted(priorities)


def ids(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def answers(word_tokenizer, job: EncodeJob, architecture: str = "BertModel"):
    """(accepted or failed, vectors by row) of one job; a vector is (length, sum of ids)."""
    engine = Engine(word_tokenizer, architecture, 0, max_model_len=16, max_pending_rows=100)
    engine.clients.put(A, job)
    engine.iterate_until(lambda: not (engine.clients._arrivals or engine.core._jobs))
    answer: Accepted | Failed | None = None
    vectors: dict[int, list[float]] = {}
    parts: deque[EncodedRows] = deque()
    for outputs in engine.clients.sent[A]:
        assert isinstance(outputs, Outputs)
        for message in (*outputs.accepted, *outputs.failed):
            answer = message
        parts.extend(outputs.encoded)
    for part in parts:
        rows = np.frombuffer(part.rows, np.int32).tolist()
        data = np.frombuffer(part.values, np.float32).reshape(len(rows), -1).tolist()
        vectors.update(zip(rows, data, strict=True))
    return answer, vectors


@pytest.mark.parametrize(("side", "kept"), [("right", 1 + 2 + 3), ("left", 18 + 19 + 20)])
def test_ids_are_cut_only_where_it_is_asked_for(word_tokenizer, side, kept) -> None:
    items = [ids(*range(1, 21)), ids(7)]
    refused, _ = answers(word_tokenizer, EncodeJob(1, ids=items))
    assert isinstance(refused, Failed)
    assert (refused.code, refused.param) == ("context_length_exceeded", "input[0]")
    assert "20 tokens" in refused.message
    assert "at most 16" in refused.message
    cut = Tokenization(truncate_to=3, truncation_side=side)
    accepted, vectors = answers(word_tokenizer, EncodeJob(1, ids=items, tokenization=cut))
    assert isinstance(accepted, Accepted)
    assert accepted.prompt_tokens == [3, 1]
    assert accepted.dropped == [17, 0]
    assert vectors == {0: [3, kept], 1: [1, 7]}


def test_texts_are_cut_and_what_is_gone_is_told(word_tokenizer) -> None:
    texts = ["w5 " * 20, "w5 w6"]
    cut = Tokenization(truncate_to=16)
    accepted, vectors = answers(word_tokenizer, EncodeJob(1, texts=texts, tokenization=cut))
    assert isinstance(accepted, Accepted)
    assert accepted.prompt_tokens == [16, 2]
    assert accepted.dropped == [4, 0]
    assert vectors[0][0] == 16


def test_nothing_is_told_where_nothing_was_cut(word_tokenizer) -> None:
    cut = Tokenization(truncate_to=16)
    accepted, _ = answers(word_tokenizer, EncodeJob(1, texts=["w5", "w6"], tokenization=cut))
    assert isinstance(accepted, Accepted)
    assert accepted.dropped == []


def test_one_of_a_hundred_that_is_too_long_is_named_with_both_lengths(word_tokenizer) -> None:
    texts = ["w5 w6"] * 61 + ["w5 " * 23] + ["w7"] * 38
    failed, vectors = answers(word_tokenizer, EncodeJob(1, texts=texts))
    assert isinstance(failed, Failed)
    assert failed.param == "input[61]"
    assert failed.message == "input[61] has 23 tokens; this model takes at most 16"
    assert vectors == {}


def test_what_is_cut_may_still_hold_an_unknown_id(word_tokenizer) -> None:
    cut = Tokenization(truncate_to=2)
    failed, _ = answers(word_tokenizer, EncodeJob(1, ids=[ids(1, 50, 2)], tokenization=cut))
    assert isinstance(failed, Failed)
    assert failed.param == "input"


def test_a_prompt_is_not_pooled(word_tokenizer) -> None:
    behind = Tokenization(unpooled=1)
    job = EncodeJob(1, texts=["w9 w5 w6", "w9 w7"], tokenization=behind)
    assert answers(word_tokenizer, job)[1] == {0: [3, 5 + 6], 1: [2, 7]}
    failed, _ = answers(word_tokenizer, EncodeJob(1, texts=["w9 w5", "w9"], tokenization=behind))
    assert isinstance(failed, Failed)
    assert failed.message == "input[1] has no tokens behind the 1 of its prompt"


def test_rows_behind_prompts_share_steps_with_others() -> None:
    config = execution_config(task="embed", max_model_len=16, max_step_tokens=32)
    scheduler = PrefillOnlyScheduler(config, 0)
    for job_id, unpooled, lens in ((1, 0, [4]), (2, 3, [5, 6])):
        own = Tokenization(unpooled=unpooled)
        message = EncodeJob(job_id, ids=[b""] * len(lens), tokenization=own)
        job = Job(A, message, len(lens), sum(lens))
        tokens = np.zeros(sum(lens), np.int32)
        scheduler.add(job, EncoderRows(tokens, np.empty(0, np.uint8), np.array(lens, np.int32)))
    batch = scheduler.schedule(None)
    assert batch is not None
    assert np.frombuffer(scheduler.build(batch).unpooled_lens, np.int32).tolist() == [0, 3, 3]


def test_of_a_pair_only_the_text_is_cut(word_tokenizer) -> None:
    cut = Tokenization(truncate_to=6)
    job = EncodeJob(1, texts=["w1 " * 9, "w1"], query="w9 w8 w7 w6", tokenization=cut)
    accepted, vectors = answers(word_tokenizer, job, "BertForSequenceClassification")
    assert isinstance(accepted, Accepted)
    assert accepted.prompt_tokens == [6, 5]
    assert accepted.dropped == [7, 0]
    assert vectors[0] == [6, 9 + 8 + 7 + 6 + 1 + 1]


def test_ids_are_no_part_of_a_pair(word_tokenizer) -> None:
    job = EncodeJob(1, ids=[ids(1)], query="w9")
    failed, _ = answers(word_tokenizer, job, "BertForSequenceClassification")
    assert isinstance(failed, Failed)
    assert failed.code == "invalid_request"
