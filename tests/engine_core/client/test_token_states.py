"""Jobs that ask for each token's state, beside jobs that ask for vectors."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from engine_core.client import pending_jobs
from engine_core.client.pending_jobs import EngineError
from engine_core.job import Job, RefusalError
from engine_core.messages import Abort, Accepted, EncodeJob, Outputs, Vectors
from engine_core.outbox import Outbox
from engine_core.schedulers.batches import EncoderBatch
from engine_core.schedulers.prefill_only import EncoderRows, PrefillOnlyScheduler
from engine_core.workflows.classify import WORKFLOW, CrossEncoderProcessor
from tests.engine_core.client.test_engine_client import connected
from tests.engine_core.configs import engine_config
from workers.contract.messages import StepOutput


def add(scheduler: PrefillOnlyScheduler, job_id: int, lens: list[int], *, states: bool) -> None:
    message = EncodeJob(job_id, ids=[b""] * len(lens), token_states=states)
    rows = EncoderRows(
        np.zeros(sum(lens), np.int32), np.empty(0, np.uint8), np.array(lens, np.int32)
    )
    scheduler.add(Job(b"a", message, len(lens), sum(lens)), rows)


def run(scheduler: PrefillOnlyScheduler, batch: EncoderBatch) -> dict[int, list[list[float]]]:
    """The step's numbers by job: vector i of the step is [i, -i]."""
    numbers = np.arange(int(batch.sizes.sum()), dtype=np.float32)
    pooled = np.stack([numbers, -numbers], axis=1)
    told: dict[int, list[list[float]]] = {}

    class Recorder(Outbox):
        def vectors(self, job: Job, part: Vectors, rows: int) -> None:
            told.setdefault(part.job, []).extend(
                np.frombuffer(part.data, np.float32).reshape(-1, 2).tolist()
            )
            super().vectors(job, part, rows)

    output = StepOutput(batch.step, pooled=pooled.tobytes())
    scheduler.update(batch, output, Recorder(lambda job: None))
    return told


def test_a_step_tells_vectors_and_states() -> None:
    scheduler = PrefillOnlyScheduler(engine_config(max_model_len=16, max_step_tokens=32), 0)
    add(scheduler, 1, [4, 2], states=False)
    add(scheduler, 2, [3, 1], states=True)
    batch = scheduler.schedule(None)
    assert batch is not None
    message = scheduler.build(batch)
    assert list(message.states) == [0, 1, 1, 0]
    assert batch.sizes.tolist() == [1, 3, 1, 1]
    assert run(scheduler, batch) == {
        1: [[0, 0], [5, -5]],
        2: [[1, -1], [2, -2], [3, -3], [4, -4]],
    }


def test_a_step_without_states_says_nothing_of_them() -> None:
    scheduler = PrefillOnlyScheduler(engine_config(max_model_len=16, max_step_tokens=32), 0)
    add(scheduler, 1, [4, 2], states=False)
    batch = scheduler.schedule(None)
    assert batch is not None
    assert scheduler.build(batch).states == b""
    assert batch.sizes.tolist() == [1, 1]


async def test_states_are_placed_by_item(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, script):
        call = asyncio.create_task(client.encode(texts=["a", "b", "c"], token_states=True))
        job = await script.job()
        assert isinstance(job, EncodeJob)
        assert job.token_states
        await script.send(Outputs(accepted=[Accepted(job.id, [2, 1, 3])]))
        for rows, numbers in (([2, 0], [3, 4, 5, 0, 1]), ([1], [2])):
            data = np.array([[number, -number] for number in numbers], np.float32)
            part = Vectors(job.id, np.array(rows, np.int32).tobytes(), data.tobytes())
            await script.send(Outputs(vectors=[part]))
        encoded = await asyncio.wait_for(call, 5)
        assert encoded.vectors.tolist() == [[number, -number] for number in range(6)]
        assert encoded.prompt_tokens == [2, 1, 3]


async def test_a_job_of_too_many_states_is_aborted_before_it_runs(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(pending_jobs, "MAX_STATE_NUMBERS", 11)
    async with connected(tmp_path) as (client, script):
        call = asyncio.create_task(client.encode(texts=["a", "b"], token_states=True))
        job = await script.job()
        part = Vectors(job.id, np.array([1], np.int32).tobytes(), np.ones(6, np.float32).tobytes())
        await script.send(Outputs(accepted=[Accepted(job.id, [3, 3])], vectors=[part]))
        with pytest.raises(EngineError, match="12 numbers; an answer takes 11") as refused:
            await asyncio.wait_for(call, 5)
        assert refused.value.code == "too_large"
        assert await script.receive() == Abort([job.id])


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        (None, ["a", "b"]),
        ("q", [("q", "a"), ("q", "b")]),
        (["p", "q"], [("p", "a"), ("q", "b")]),
    ],
)
def test_a_cross_encoder_takes_texts_alone_and_in_pairs(
    query: str | list[str] | None, texts: list[str | tuple[str, str]]
) -> None:
    processor = CrossEncoderProcessor(engine_config(), 0)
    assert processor.texts(EncodeJob(1, texts=["a", "b"], query=query)) == texts


def test_a_cross_encoder_refuses_what_it_cannot_do() -> None:
    processor = CrossEncoderProcessor(engine_config(), 0)
    with pytest.raises(RefusalError):
        processor.texts(EncodeJob(1, texts=["a", "b"], query=["q"]))
    with pytest.raises(RefusalError):
        WORKFLOW.check(EncodeJob(1, texts=["a"], token_states=True))
