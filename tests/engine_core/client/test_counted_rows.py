"""Jobs whose rows have any number of values: each token's state, or a sparse vector's entries."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine_core.client import pending_jobs
from engine_core.client.pending_jobs import FloatArray, OfTokens
from engine_core.loop.outbox import Outbox
from engine_core.messages import (
    Abort,
    Accepted,
    EncodedRows,
    EncodeJob,
    GenerateJob,
    Outputs,
    SamplingParams,
)
from engine_core.refusal import RefusalError
from engine_core.schedulers.batches import EncodeBatch
from engine_core.schedulers.prefill_only import PrefillOnlyScheduler
from engine_core.workflows.base import workflow_for
from engine_core.workflows.tokenizer_threads import Text
from tests.engine_core.client.test_engine_client import connected, int32
from tests.engine_core.configs import MODEL, execution_config
from tests.engine_core.schedulers.test_prefill_only import Steps
from workers.contract.config import Task
from workers.contract.messages import EmbedOutput, EmbedSparseOutput
from workers.contract.model_config import TokenOutput

Row = Sequence[tuple[float, float]]
STATES: list[Row] = [[(0, 0), (1, -1)], [(2, -2)], [(3, -3), (4, -4), (5, -5)]]
VECTORS: list[Row] = [[(0, 1)], [(2, 3)], [(4, 5)]]
"""One each, which is not counted."""
ENTRIES: list[Row] = [[(3, 0.5), (40, 2)], [], [(0, 1)], [(7, 3), (8, 4), (49, 5)]]


def packed(rows: Sequence[Row]) -> tuple[bytes, bytes]:
    """Values and counts as messages carry them."""
    values = np.array([value for row in rows for value in row], np.float32)
    return values.tobytes(), int32(map(len, rows))


def update(
    scheduler: PrefillOnlyScheduler, batch: EncodeBatch, output: EmbedOutput | EmbedSparseOutput
) -> tuple[dict[int, EncodedRows], list[int]]:
    """What a step's output tells the client: each job's parts, joined, and which jobs failed."""
    outbox, parts = Outbox(lambda job: None), dict[int, EncodedRows]()
    scheduler.update(batch, output, outbox)
    ((_, outputs),) = outbox.take()
    for part in outputs.encoded:
        had = parts.get(part.job, EncodedRows(part.job, b"", b""))
        names = ("rows", "values", "counts", "lens")
        joined = [getattr(had, name) + getattr(part, name) for name in names]
        parts[part.job] = EncodedRows(part.job, *joined)
    return parts, [failed.id for failed in outputs.failed]


def scheduled(
    task: Task, *jobs: list[int], states: int = 0, max_step_tokens: int = 32
) -> tuple[PrefillOnlyScheduler, EncodeBatch]:
    """The first step of jobs with rows of these lengths; the job `states` asks for states."""
    steps = Steps(task=task, max_model_len=8, max_step_tokens=max_step_tokens)
    for number, lens in enumerate(jobs, 1):
        steps.add(number, lens, outputs=("states",) if number == states else ("vector",))
    batch = steps.scheduler.schedule(None)
    assert batch is not None
    return steps.scheduler, batch


def test_a_step_returns_vectors_and_states_of_other_sizes() -> None:
    # Just enough for all: job 1 gets its second row after its share and job 2's.
    scheduler, batch = scheduled("embed", [4, 2], [3, 1], states=2, max_step_tokens=10)
    assert scheduler.build(batch).requested == {"states": bytes([0, 1, 1, 0])}
    vectors = np.array([[row, -row] for row in range(4)], np.float32)
    states = np.arange(4, dtype=np.float32).repeat(3)
    output = EmbedOutput(batch.step, vectors=vectors.tobytes(), tokens={"states": states.tobytes()})
    assert update(scheduler, batch, output)[0] == {
        1: EncodedRows(1, int32([0, 1]), vectors[[0, 3]].tobytes(), lens=int32([4, 2])),
        2: EncodedRows(2, int32([0, 1]), states.tobytes(), int32([3, 1]), int32([3, 1])),
    }
    scheduler, batch = scheduled("embed", [4, 2])
    assert scheduler.build(batch).requested == {}, "without states nothing is said of them"


def sparse(rows: Sequence[Row], *jobs: int) -> tuple[dict[int, EncodedRows], list[int]]:
    """One step of jobs with so many rows each, whose rows come to `rows`."""
    scheduler, batch = scheduled("embed_sparse", *([1] * count for count in jobs))
    entries, counts = packed(rows)
    return update(scheduler, batch, EmbedSparseOutput(batch.step, entries=entries, counts=counts))


@pytest.mark.parametrize("rows", [ENTRIES, [[], [], [], []]], ids=["some", "none"])
def test_each_job_is_told_its_own_entries(rows: list[Row]) -> None:
    assert sparse(rows, 2, 2)[0] == {
        job: EncodedRows(job, int32([0, 1]), *packed(own), int32([1, 1]))
        for job, own in ((1, rows[:2]), (2, rows[2:]))
    }


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_only_the_job_with_a_row_that_is_not_finite_fails(number: float) -> None:
    parts, failed = sparse([[(1, 1)], [(1, number), (2, 1)], [(3, 1)]], 1, 1, 1)
    assert ([*parts], failed) == ([1, 3], [2])


def of_tokens(states: bool) -> OfTokens:
    return OfTokens(("states",) if states else ("vector",))


TASKS = [("embed", True), ("embed_sparse", False)]


@pytest.mark.parametrize(
    ("task", "states", "own"),
    [("embed", True, STATES), ("embed_sparse", False, ENTRIES[:3]), ("embed", False, VECTORS)],
)
async def test_values_are_put_together_by_item(
    tmp_path: Path, task: Task, states: bool, own: list[Row]
) -> None:
    async with connected(tmp_path, task) as (client, script):
        call = asyncio.create_task(
            client.encode(texts=["a", "b", "c"], of_tokens=of_tokens(states))
        )
        job = await script.job()
        assert isinstance(job, EncodeJob)
        assert job.outputs == of_tokens(states).outputs
        await script.send(Outputs(accepted=[Accepted(job.id)]))
        for rows, dropped in (([2, 0], b""), ([1], int32([4]))):
            values, counts = packed([own[row] for row in rows])
            counts = b"" if own is VECTORS else counts
            lens = int32([2, 1, 3][row] for row in rows)
            part = EncodedRows(job.id, int32(rows), values, counts, lens, dropped)
            await script.send(Outputs(encoded=[part]))
        encoded = await call
        assert encoded.values.tolist() == [list(value) for row in own for value in row]
        assert encoded.counts == ([] if own is VECTORS else [len(row) for row in own])
        assert (encoded.prompt_tokens, encoded.dropped) == ([2, 1, 3], [0, 4, 0])


@pytest.mark.parametrize(("task", "states"), TASKS)
async def test_a_job_of_too_many_values_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Task, states: bool
) -> None:
    monkeypatch.setattr(pending_jobs, "MAX_NUMBERS", 7)
    async with connected(tmp_path, task) as (client, script):
        call = asyncio.create_task(
            client.encode(texts=["a", "b", "c"], of_tokens=of_tokens(states))
        )
        job = await script.job()
        own = packed([[(1, 1), (2, 2)]])
        parts = [EncodedRows(job.id, int32([row]), *own, int32([2])) for row in range(3)]
        await script.send(Outputs(accepted=[Accepted(job.id)], encoded=parts))
        with pytest.raises(RefusalError, match="more than 7 numbers") as refused:
            await call
        assert refused.value.code == "too_large"
        assert await script.receive() == Abort([job.id])


def test_a_cross_encoder_takes_texts_alone_and_in_pairs() -> None:
    workflow = workflow_for("classify", has_kv_cache=False)
    processor = workflow.processor(execution_config(task="classify"), 0)

    def texts_of(query: str | list[str] | None) -> list[Text]:
        return processor.texts(EncodeJob(1, texts=["a", "b"], query=query))

    assert texts_of(None) == ["a", "b"]
    assert texts_of("q") == [("q", "a"), ("q", "b")]
    assert texts_of(["p", "q"]) == [("p", "a"), ("q", "b")]
    with pytest.raises(RefusalError):
        texts_of(["q"])
    with pytest.raises(RefusalError):
        workflow.check(EncodeJob(1, texts=["a"], outputs=("states",)))


def test_the_workflow_of_masked_language_models() -> None:
    workflow = workflow_for("embed_sparse", has_kv_cache=False)
    assert workflow.task == "embed_sparse"
    assert workflow.vector_size(MODEL) == MODEL.vocab_size
    processor = workflow.processor(execution_config(), 0)
    assert processor.texts(EncodeJob(1, texts=["a", "b"])) == ["a", "b"]
    for refused in (
        EncodeJob(1, texts=["a"], outputs=("states",)),
        EncodeJob(1, texts=["a"], query="q"),
        GenerateJob(1, params=SamplingParams(), texts=["a"]),
    ):
        with pytest.raises(RefusalError):
            workflow.check(refused)


async def test_numbers_of_tokens_are_admitted_before_they_come(tmp_path: Path) -> None:
    """A refusal ends the job, which is aborted; what is reduced needs no room."""
    asked: list[int] = []

    def admit(count: int) -> None:
        asked.append(count)
        raise RefusalError("overloaded", "no room")

    async with connected(tmp_path, "embed") as (client, script):
        call = asyncio.create_task(
            client.encode(texts=["a", "b"], of_tokens=OfTokens(("states",)), admit=admit)
        )
        job = await script.job()
        part = EncodedRows(job.id, int32([0]), *packed([[(1, 1), (2, 2)]]), int32([2]))
        await script.send(Outputs(accepted=[Accepted(job.id)], encoded=[part]))
        with pytest.raises(RefusalError, match="no room"):
            await call
        assert asked == [4 * 2 * 2], "float32, two numbers a token"
        assert await script.receive() == Abort([job.id])

        def reduce(row: int, values: FloatArray, ids: bytes) -> FloatArray:
            return np.array([row + values.sum() + len(ids)], np.float32)

        wanted = OfTokens(("states",), reduce=reduce)
        call = asyncio.create_task(client.encode(texts=["a", "b"], of_tokens=wanted, admit=admit))
        job = await script.job()
        own, ids = packed([[(1, 2), (3, 4)], [(5, 6)]]), [int32([7, 8]), int32([7])]
        part = EncodedRows(job.id, int32([1, 0]), *own, int32([2, 1]), ids=ids)
        await script.send(Outputs(accepted=[Accepted(job.id)], encoded=[part]))
        assert (await call).values.tolist() == [[0 + 11 + 4], [1 + 10 + 8]]
        assert len(asked) == 1


@pytest.mark.parametrize("last", [0.125, np.nan])
def test_several_outputs_of_a_job_are_side_by_side(last: float) -> None:
    steps = Steps(task="embed", max_model_len=8, max_step_tokens=32)
    steps.add(1, [2, 1], outputs=("vector", "states", "token_weights"))
    batch = steps.scheduler.schedule(None)
    assert batch is not None
    vectors = np.array([1, 2, 3, 4], np.float32)
    states, weights = np.arange(9, dtype=np.float32), np.array([0.5, 0.25, last], np.float32)
    tokens: dict[TokenOutput, bytes] = {
        "states": states.tobytes(),
        "token_weights": weights.tobytes(),
    }
    output = EmbedOutput(batch.step, vectors=vectors.tobytes(), tokens=tokens)
    rows = [[1, 2, 0, 1, 2, 3, 4, 5, 0.5, 0.25], [3, 4, 6, 7, 8, last]]
    values = np.array([value for row in rows for value in row], np.float32).tobytes()
    expected = {1: EncodedRows(1, int32([0, 1]), values, int32([10, 6]), int32([2, 1]))}
    fails = bool(np.isnan(last))
    assert update(steps.scheduler, batch, output) == (({}, [1]) if fails else (expected, []))
