"""Jobs that ask for each token's state, beside jobs that ask for vectors."""

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
    Outputs,
)
from engine_core.refusal import RefusalError
from engine_core.schedulers.batches import EncodeBatch
from engine_core.schedulers.prefill_only import EncoderRows, PrefillOnlyScheduler
from engine_core.workflows.encode import WORKFLOWS, EncodeProcessor
from tests.engine_core.client.test_engine_client import connected
from tests.engine_core.configs import execution_config
from tests.patience import PATIENCE
from workers.contract.messages import EmbedOutput


def add(scheduler: PrefillOnlyScheduler, job_id: int, lens: list[int], *, states: bool) -> None:
    message = EncodeJob(job_id, ids=[b""] * len(lens), token_states=states)
    rows = EncoderRows(
        np.zeros(sum(lens), np.int32), np.empty(0, np.uint8), np.array(lens, np.int32)
    )
    scheduler.add(Job(b"a", message, len(lens), sum(lens)), rows)


Sent = dict[int, tuple[list[list[float]], list[int]]]


def run(scheduler: PrefillOnlyScheduler, batch: EncodeBatch) -> Sent:
    """The step's values and counts by job: vector i of the step is [i, -i], state i [i, i, i]."""
    numbers = np.arange(len(batch.lens), dtype=np.float32)
    pooled = np.stack([numbers, -numbers], axis=1)
    states = np.arange(int(batch.num_states.sum()), dtype=np.float32).repeat(3)
    sent: Sent = {}

    class Recorder(Outbox):
        def encoded(self, job: Job, part: EncodedRows, rows: int) -> None:
            data = np.frombuffer(part.values, np.float32)
            values, counts = sent.setdefault(part.job, ([], []))
            values += data.reshape(-1, 3 if part.counts else 2).tolist()
            counts += np.frombuffer(part.counts, np.int32).tolist()
            super().encoded(job, part, rows)

    output = EmbedOutput(batch.step, vectors=pooled.tobytes(), states=states.tobytes())
    scheduler.update(batch, output, Recorder(lambda job: None))
    return sent


def test_a_step_returns_vectors_and_states_of_other_sizes() -> None:
    # Just enough for all: job 1 gets its second row after its share and job 2's.
    config = execution_config(task="embed", max_model_len=8, max_step_tokens=10)
    scheduler = PrefillOnlyScheduler(config, 0)
    add(scheduler, 1, [4, 2], states=False)
    add(scheduler, 2, [3, 1], states=True)
    batch = scheduler.schedule(None)
    assert batch is not None
    message = scheduler.build(batch)
    assert list(message.token_states) == [0, 1, 1, 0]
    assert batch.num_states.tolist() == [0, 3, 1, 0]
    assert run(scheduler, batch) == {
        1: ([[0, 0], [3, -3]], []),
        2: ([[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]], [3, 1]),
    }


def test_a_step_without_states_says_nothing_of_them() -> None:
    config = execution_config(task="embed", max_model_len=16, max_step_tokens=32)
    scheduler = PrefillOnlyScheduler(config, 0)
    add(scheduler, 1, [4, 2], states=False)
    batch = scheduler.schedule(None)
    assert batch is not None
    assert scheduler.build(batch).token_states == b""
    assert batch.num_states.tolist() == [0, 0]


def states_part(job: int, rows: list[int], counts: list[int], values: np.ndarray) -> EncodedRows:
    row_numbers, each = (np.array(numbers, np.int32).tobytes() for numbers in (rows, counts))
    return EncodedRows(job, row_numbers, values.tobytes(), each)


async def test_states_are_placed_by_item(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, script):
        call = asyncio.create_task(client.encode(texts=["a", "b", "c"], token_states=True))
        job = await script.job()
        assert isinstance(job, EncodeJob)
        assert job.token_states
        await script.send(Outputs(accepted=[Accepted(job.id, [2, 1, 3])]))
        for rows, counts, numbers in (([2, 0], [3, 2], [3, 4, 5, 0, 1]), ([1], [1], [2])):
            data = np.array([[number, -number] for number in numbers], np.float32)
            await script.send(Outputs(encoded=[states_part(job.id, rows, counts, data)]))
        encoded = await asyncio.wait_for(call, PATIENCE)
        assert encoded.values.tolist() == [[number, -number] for number in range(6)]
        assert encoded.counts == [2, 1, 3]
        assert encoded.prompt_tokens == [2, 1, 3]


async def test_a_job_of_too_many_states_is_aborted_before_it_runs(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(pending_jobs, "MAX_STATE_NUMBERS", 11)
    async with connected(tmp_path) as (client, script):
        call = asyncio.create_task(client.encode(texts=["a", "b"], token_states=True))
        job = await script.job()
        part = states_part(job.id, [1], [3], np.ones(6, np.float32))
        await script.send(Outputs(accepted=[Accepted(job.id, [3, 3])], encoded=[part]))
        with pytest.raises(RefusalError, match="12 numbers; an answer takes 11") as refused:
            await asyncio.wait_for(call, PATIENCE)
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
    processor = EncodeProcessor(execution_config(task="classify"), 0)
    assert processor.texts(EncodeJob(1, texts=["a", "b"], query=query)) == texts


def test_a_cross_encoder_refuses_what_it_cannot_do() -> None:
    processor = EncodeProcessor(execution_config(task="classify"), 0)
    with pytest.raises(RefusalError):
        processor.texts(EncodeJob(1, texts=["a", "b"], query=["q"]))
    with pytest.raises(RefusalError):
        WORKFLOWS["classify"].check(EncodeJob(1, texts=["a"], token_states=True))
