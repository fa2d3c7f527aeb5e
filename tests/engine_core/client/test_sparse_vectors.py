"""Jobs whose vectors are sparse: rows of unequal size, by item."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from engine_core.client import pending_jobs
from engine_core.loop.jobs import Job
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
from engine_core.schedulers.prefill_only import EncoderRows, PrefillOnlyScheduler
from engine_core.workflows.base import workflow_for
from tests.engine_core.client.test_engine_client import connected
from tests.engine_core.configs import MODEL, execution_config
from tests.patience import PATIENCE
from workers.contract.messages import EmbedSparseOutput

Row = list[tuple[float, float]]


def sparse(rows: list[Row]) -> tuple[bytes, bytes]:
    """Entries and counts as messages carry them."""
    entries = np.array([entry for row in rows for entry in row], np.float32)
    return entries.tobytes(), np.array([len(row) for row in rows], np.int32).tobytes()


class Told(Outbox):
    """What was said: each job's parts, and who failed."""

    def __init__(self) -> None:
        super().__init__(lambda job: None)
        self.parts: dict[int, EncodedRows] = {}
        self.failed: list[int] = []

    def encoded(self, job: Job, part: EncodedRows, rows: int) -> None:
        self.parts[part.job] = part
        super().encoded(job, part, rows)

    def fail_not_finite(self, job: Job) -> None:
        self.failed.append(job.message.id)
        super().fail_not_finite(job)


def run(rows: list[Row], *jobs: int) -> Told:
    """One step of jobs with so many rows each, whose rows come to `rows`."""
    config = execution_config(task="embed_sparse", max_model_len=16, max_step_tokens=32)
    scheduler = PrefillOnlyScheduler(config, 0)
    for job_id, count in enumerate(jobs, 1):
        tokens, lens = np.zeros(count, np.int32), np.ones(count, np.int32)
        own = EncoderRows(tokens, np.empty(0, np.uint8), lens)
        scheduler.add(Job(b"a", EncodeJob(job_id, ids=[b""] * count), count, count), own)
    batch = scheduler.schedule(None)
    assert batch is not None
    told = Told()
    entries, counts = sparse(rows)
    scheduler.update(batch, EmbedSparseOutput(batch.step, entries=entries, counts=counts), told)
    return told


def test_each_job_is_told_its_own_entries() -> None:
    rows: list[Row] = [[(3, 0.5), (40, 2)], [], [(0, 1)], [(7, 3), (8, 4), (49, 5)]]
    told = run(rows, 2, 2)
    for job, own in ((1, rows[:2]), (2, rows[2:])):
        part = told.parts[job]
        assert (part.values, part.counts) == sparse(own)
        assert np.frombuffer(part.rows, np.int32).tolist() == [0, 1]


def test_a_step_in_which_nothing_is_left() -> None:
    told = run([[], [], [], []], 2, 2)
    assert [(part.values, part.counts) for part in told.parts.values()] == [sparse([[], []])] * 2


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_only_the_job_with_a_row_that_is_not_finite_fails(number: float) -> None:
    told = run([[(1, 1)], [(1, number), (2, 1)], [(3, 1)]], 1, 1, 1)
    assert told.failed == [2]
    assert list(told.parts) == [1, 3]


async def test_entries_are_put_together_by_item(tmp_path: Path) -> None:
    async with connected(tmp_path, "embed_sparse") as (client, script):
        call = asyncio.create_task(client.encode(texts=["a", "b", "c"]))
        job = await script.job()
        await script.send(Outputs(accepted=[Accepted(job.id, [2, 1, 3], dropped=[0, 4, 0])]))
        first: list[Row] = [[(5, 0.5)], [(1, 1), (49, 2)]]
        for rows, own in (([2, 0], first), ([1], [[]])):
            part = EncodedRows(job.id, np.array(rows, np.int32).tobytes(), *sparse(own))
            await script.send(Outputs(encoded=[part]))
        encoded = await asyncio.wait_for(call, PATIENCE)
        assert encoded.values.tolist() == [[1, 1], [49, 2], [5, 0.5]]
        assert encoded.counts == [2, 0, 1]
        assert (encoded.prompt_tokens, encoded.dropped) == ([2, 1, 3], [0, 4, 0])


async def test_a_job_of_too_many_entries_is_aborted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pending_jobs, "MAX_SPARSE_ENTRIES", 3)
    async with connected(tmp_path, "embed_sparse") as (client, script):
        call = asyncio.create_task(client.encode(texts=["a", "b", "c"]))
        job = await script.job()
        await script.send(Outputs(accepted=[Accepted(job.id, [2, 1, 3])]))
        for row in range(3):
            part = EncodedRows(
                job.id, np.array([row], np.int32).tobytes(), *sparse([[(1, 1), (2, 2)]])
            )
            await script.send(Outputs(encoded=[part]))
        with pytest.raises(RefusalError, match="more than 3 entries") as refused:
            await asyncio.wait_for(call, PATIENCE)
        assert refused.value.code == "too_large"
        assert await script.receive() == Abort([job.id])


def test_the_workflow_of_masked_language_models() -> None:
    workflow = workflow_for("embed_sparse", has_kv_cache=False)
    assert workflow.task == "embed_sparse"
    assert workflow.vector_size(MODEL) == MODEL.vocab_size
    processor = workflow.processor(execution_config(), 0)
    assert processor.texts(EncodeJob(1, texts=["a", "b"])) == ["a", "b"]
    for refused in (
        EncodeJob(1, texts=["a"], token_states=True),
        EncodeJob(1, texts=["a"], query="q"),
        GenerateJob(1, params=SamplingParams(), texts=["a"]),
    ):
        with pytest.raises(RefusalError):
            workflow.check(refused)
