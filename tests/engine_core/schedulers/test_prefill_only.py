"""Encode jobs in the core: which rows run first, how keys share steps, what is truncated."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.loop.jobs import Job
from engine_core.loop.outbox import Outbox
from engine_core.loop.reports import StepWork
from engine_core.messages import EncodeJob, Failed, KeyShare, Tokenization
from engine_core.schedulers.cost_model import Coefficients, CostModel
from engine_core.schedulers.encoder_rows import EncoderRows
from engine_core.schedulers.prefill_only import PrefillOnlyScheduler
from tests.engine_core.configs import execution_config
from tests.engine_core.fake_transport import Engine
from tests.engine_core.simulated_model import ids
from tests.engine_core.test_core import Ledger
from workers.contract.messages import EmbedOutput

A = b"a"
BGE_BASE = Coefficients(step=1e-4, token=4e-7, attended=8e-11, context=0.0)


def rows_of(lens: list[int]) -> EncoderRows:
    """Rows of these lengths."""
    return EncoderRows(bytearray(4 * sum(lens)), bytearray(np.array(lens, np.int32).tobytes()))


class Steps:
    """A scheduler whose steps run at once; `order` has (job, row) as they were submitted."""

    def __init__(self, stages: int = 1, costs: Coefficients = BGE_BASE, **options: Any) -> None:
        fixed = {"max_model_len": 16, "num_stages": stages, "task": "embed"}
        config = execution_config(**fixed | options)
        self.costs = CostModel(costs)
        self.now = 0.0
        self.scheduler = PrefillOnlyScheduler(config, 0, lambda: self.now, self.costs)
        self.outbox = Outbox(lambda job: None)
        self.order: list[list[tuple[int, int]]] = []
        self.jobs: dict[int, Job] = {}
        self.works: list[StepWork] = []

    def add(
        self, job_id: int, lens: list[int], priority: int = 0, of: int = 0, **options: Any
    ) -> None:
        """A job whose first rows have these lengths, `of` so many if others are to come."""
        message = EncodeJob(job_id, ids=[b""] * len(lens), priority=priority, **options)
        job = self.jobs[job_id] = Job(A, message, of or len(lens), sum(lens))
        self.scheduler.add(job, rows_of(lens))

    def add_more(self, job_id: int, lens: list[int]) -> None:
        """The next rows of a job."""
        self.scheduler.add(self.jobs[job_id], rows_of(lens))

    def add_each(self, jobs: Iterable[int], lens: list[int], **options: Any) -> None:
        """Several jobs of the same lengths."""
        for job in jobs:
            self.add(job, lens, **options)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> bool:
        batch = self.scheduler.schedule(None)
        if batch is None:
            return False
        self.order.append([(job.message.id, row) for job, rows in batch.parts for row in rows])
        assert 4 * sum(batch.lens) == len(batch.message.tokens)
        self.works.append(batch.work)
        self.now += self.costs.seconds(batch.work)
        pooled = np.zeros((len(batch.lens), 2), np.float32)
        output = EmbedOutput(batch.step, vectors=pooled.tobytes())
        self.scheduler.update(batch, output, self.outbox)
        return True

    def drain(self) -> list[int]:
        """The jobs in the order in which their last rows ran. Nothing is left behind."""
        while self.step():
            pass
        usage, budget = self.scheduler.usage(), self.scheduler._budget
        assert (usage.running, usage.waiting, self.scheduler._waiting_rows) == (0, 0, 0)
        assert (budget._whole_costs, budget._waiting, self.scheduler._rows) == (0, [0, 0, 0], {})
        last = {job: at for at, rows in enumerate(self.order) for job, _ in rows}
        return sorted(last, key=lambda job: (last[job], job))


def test_a_job_without_a_row_for_ten_seconds_goes_before_every_priority_for_one_step() -> None:
    steps = Steps()
    steps.add(1, [16] * 5)
    for job in range(2, 10):
        steps.now += 4
        steps.add(job, [16] * 2, priority=-1)
        steps.step()
    turns = [(at, rows) for at, rows in enumerate(steps.order) if any(job == 1 for job, _ in rows)]
    assert turns == [(2, [(1, 0), (1, 1)]), (5, [(1, 2), (1, 3)])]


@pytest.mark.parametrize(
    ("lens", "priorities", "first"),
    [
        (([8] * 4, [16]), (1, 0), [(2, 0), (1, 0), (1, 1)]),
        (([8] * 10, [8] * 2), (3, 3), [(1, 0), (1, 1), (2, 0), (2, 1)]),
    ],
    ids=["what the first leave goes to the next", "equals share"],
)
def test_jobs_share_a_step_by_priority(lens, priorities, first) -> None:
    steps = Steps()
    for job, own in enumerate(lens, 1):
        steps.add(job, own, priorities[job - 1])
    assert steps.drain() == [2, 1]
    assert sorted(steps.order[0]) == sorted(first)


def test_a_dropped_job_leaves_its_priority() -> None:
    steps = Steps()
    steps.add(1, [16] * 4, priority=-1)
    steps.add(2, [16] * 2)
    assert steps.step()
    assert steps.scheduler.abort(steps.jobs[1]) == 2
    assert steps.scheduler.abort(steps.jobs[1]) == 2  # it waits no longer: nothing happens
    steps.drain()
    assert steps.order == [[(1, 0), (1, 1)], [(2, 0), (2, 1)]]


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
    queue, rows = steps.scheduler._waiting, steps.scheduler._rows
    while first := next(iter(queue), None):
        assert steps.step()
        assert first in {steps.jobs[job] for job, _ in steps.order[-1]}
        places = [(job.message.priority, job.kind) for job in queue]
        assert places == sorted(places)
        assert {*queue} == {*rows}
        new = [rows[job].next_tokens for job in queue if not rows[job].cursor]
        assert queue.num_tokens == sum(new)
    ran = sorted(row for rows in steps.order for row in rows)
    assert ran == [(job, row) for job, (lens, _) in enumerate(jobs) for row in range(len(lens))]
    for rows in steps.order:
        assert sum(jobs[job][0][row] for job, row in rows) <= 32
    steps.drain()


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
    steps.add_each(range(2000), [32])
    steps.drain()
    assert all(work.tokens >= 512 for work in steps.works[:-1])
    assert len(steps.works) <= 16 * stages


def test_rows_of_one_length_fill_a_pipelines_steps_to_the_brim() -> None:
    steps = Steps(max_step_tokens=16_384, stages=2, max_model_len=512)
    steps.add_each(range(64), [512] * 64)
    steps.drain()
    assert {work.tokens for work in steps.works} == {16_384}


def test_short_rows_beside_long_ones_are_no_more_than_a_step_may_have() -> None:
    steps = Steps(max_step_tokens=16_384, stages=2, max_model_len=8192)
    steps.add(1, [8192] * 40)
    steps.add(2, [8] * 40_000, priority=-1)
    steps.drain()
    assert max(work.tokens for work in steps.works) == 16_384


GREEDY, HONEST = KeyShare(1), KeyShare(2)


def of_key(steps: Steps) -> list[Counter[int]]:
    """How many rows of each key each step had."""
    return [Counter(steps.jobs[job].message.key.number for job, _ in rows) for rows in steps.order]


@pytest.mark.parametrize(
    ("backlog", "length", "rows"), [(2_000, 16, {1: 2, 2: 1}), (18, 8, {1: 3, 2: 1})]
)
def test_a_text_waits_for_no_backlog_of_another_key_which_takes_the_rest(
    backlog, length, rows
) -> None:
    steps = Steps()
    steps.add_each(range(backlog), [8], key=GREEDY)
    steps.step()
    steps.add(5_000, [length], key=HONEST)
    steps.step()
    assert of_key(steps) == [{1: 4}, rows]


@pytest.mark.parametrize("length", [4, 8, 16])
@pytest.mark.parametrize("each", [1, 40])
def test_weights_of_keys_are_shares(length: int, each: int) -> None:
    steps = Steps(max_step_tokens=32)
    shares = [KeyShare(1, 1.0), KeyShare(2, 3.0)]
    for job in range(600 // each):
        for share in shares:
            steps.add(2 * job + share.number - 1, [length] * each, key=share)
    steps.run(40)
    rows = sum(of_key(steps), Counter[int]())
    assert rows[2] / rows[1] == pytest.approx(3, rel=0.1)


def test_more_keys_than_fit_a_step_take_turns() -> None:
    steps = Steps(max_step_tokens=32)
    for key in range(8):
        steps.add_each(range(key * 20, key * 20 + 20), [16], key=KeyShare(key + 1))
    steps.run(40)
    assert sum(of_key(steps), Counter[int]()) == dict.fromkeys(range(1, 9), 10)


def test_a_key_whose_job_ends_waits_no_more() -> None:
    steps = Steps()
    for key in (1, 2, 3):
        steps.add(key, [8] * 9, key=KeyShare(key))
    steps.step()
    steps.scheduler.abort(steps.jobs[2])
    steps.drain()
    rows = of_key(steps)
    assert sum(rows, Counter[int]())[1] == 9
    assert all(2 not in step for step in rows[1:])


def answer(word_tokenizer, job: EncodeJob) -> tuple[Failed | None, list[int], list[list[float]]]:
    """How a job failed, if it did, how many tokens each row has lost, and its vector: (length, sum
    of ids)."""
    architecture = "BertModel" if job.query is None else "BertForSequenceClassification"
    engine = Engine(word_tokenizer, architecture, 0, max_model_len=16, max_pending_rows=100)
    engine.serve(job, client=A)
    outputs, vectors = engine.clients.outputs(A), Ledger(engine, A).vectors
    parts = [part for each in outputs for part in each.encoded]
    lens = np.frombuffer(b"".join(part.lens for part in parts), np.int32).tolist()
    assert lens == [vectors[1, row][0] for row in range(len(vectors))]
    dropped = np.frombuffer(b"".join(part.dropped for part in parts), np.int32).tolist()
    failed = next((failed for each in outputs for failed in each.failed), None)
    return failed, dropped, [vectors[1, row].tolist() for row in range(len(vectors))]


TWENTY = [ids(*range(1, 21)), ids(7)]
BEHIND = Tokenization(unpooled=1)


def to(tokens: int, side: Any = "right") -> Tokenization:
    return Tokenization(truncate_to=tokens, truncation_side=side)


@pytest.mark.parametrize(
    ("job", "dropped", "vectors"),
    [
        (EncodeJob(1, ids=TWENTY, tokenization=to(3)), [17, 0], [[3, 1 + 2 + 3], [1, 7]]),
        (EncodeJob(1, ids=TWENTY, tokenization=to(3, "left")),
         [17, 0], [[3, 18 + 19 + 20], [1, 7]]),
        (EncodeJob(1, texts=["w5 " * 20, "w5 w6"], tokenization=to(16)),
         [4, 0], [[16, 16 * 5], [2, 11]]),
        (EncodeJob(1, texts=["w5", "w6"], tokenization=to(16)), [0, 0], [[1, 5], [1, 6]]),
        (EncodeJob(1, texts=["w1 " * 9, "w1"], query="w9 w8 w7 w6", tokenization=to(6)),
         [7, 0], [[6, 9 + 8 + 7 + 6 + 1 + 1], [5, 9 + 8 + 7 + 6 + 1]]),
        (EncodeJob(1, texts=["w9 w5 w6", "w9 w7"], tokenization=BEHIND),
         [], [[3, 5 + 6], [2, 7]]),
    ],
    ids=["ids", "ids from the left", "texts", "nothing", "text of a pair", "prompt"],
)  # fmt: skip
def test_items_are_cut_as_asked_for(word_tokenizer, job, dropped, vectors) -> None:
    assert answer(word_tokenizer, job) == (None, dropped, vectors)


@pytest.mark.parametrize(
    ("job", "code", "param", "message"),
    [
        (EncodeJob(1, ids=TWENTY), "context_length_exceeded", "input[0]",
         "input[0] has 20 tokens; this model takes at most 16"),
        (EncodeJob(1, texts=["w5 w6"] * 61 + ["w5 " * 23] + ["w7"] * 38),
         "context_length_exceeded", "input[61]",
         "input[61] has 23 tokens; this model takes at most 16"),
        (EncodeJob(1, ids=[ids(1, 50, 2)], tokenization=to(2)), "invalid_request", "input",
         "input holds token id 50; this model's vocabulary ends at 49"),
        (EncodeJob(1, ids=[ids(1), ids(2), ids(3, 50)]), "invalid_request", "input[2]",
         "input[2] holds token id 50; this model's vocabulary ends at 49"),
        (EncodeJob(1, texts=[""]), "invalid_request", "input", "input has no tokens"),
        (EncodeJob(1, texts=["w9 w5", "w9"], tokenization=BEHIND), "invalid_request", "input[1]",
         "input[1] has no tokens behind the 1 of its prompt"),
        (EncodeJob(1, ids=[ids(1)], query="w9"), "invalid_request", None,
         "this model scores pairs of texts, not token ids"),
    ],
    ids=["too long", "a text of many", "unknown id", "of many", "empty", "only a prompt", "pair"],
)  # fmt: skip
def test_what_is_wrong_with_an_item_is_named(word_tokenizer, job, code, param, message) -> None:
    assert answer(word_tokenizer, job) == (Failed(1, code, message, param), [], [])


def test_rows_behind_prompts_share_steps_with_others() -> None:
    steps = Steps()
    for job_id, unpooled, lens in ((1, 0, [4]), (2, 3, [5, 6])):
        steps.add(job_id, lens, tokenization=Tokenization(unpooled=unpooled))
    batch = steps.scheduler.schedule(None)
    assert batch is not None
    sent = steps.scheduler.build(batch).unpooled_lens
    assert np.frombuffer(sent, np.int32).tolist() == [0, 3, 3]
