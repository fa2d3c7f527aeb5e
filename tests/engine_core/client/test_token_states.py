"""Jobs that ask for each token's state, beside jobs that ask for vectors."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from engine_core.client import encode_calls
from engine_core.client.encode_calls import StatesCall, VectorsCall
from engine_core.job import Job
from engine_core.messages import (
    Abort,
    Accepted,
    DenseVectors,
    EncodedRows,
    EncodeJob,
    Outputs,
    TokenStates,
)
from engine_core.outbox import Outbox
from engine_core.refusal import RefusalError
from engine_core.schedulers.batches import EncodeBatch
from engine_core.schedulers.prefill_only.scheduler import PrefillOnlyScheduler
from engine_core.schedulers.requests.encoder_rows import EncoderRows
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


Sent = dict[tuple[type, int], list[list[float]]]


def run(scheduler: PrefillOnlyScheduler, batch: EncodeBatch) -> Sent:
    """The step's numbers by kind and job: vector i of the step is [i, -i], state i [i, i, i]."""
    numbers = np.arange(len(batch.lens), dtype=np.float32)
    pooled = np.stack([numbers, -numbers], axis=1)
    states = np.arange(int(batch.num_states.sum()), dtype=np.float32).repeat(3)
    sent: Sent = {}

    class Recorder(Outbox):
        def encoded(self, job: Job, part: EncodedRows, rows: int) -> None:
            assert isinstance(part, DenseVectors | TokenStates)
            is_states = isinstance(part, TokenStates)
            data = np.frombuffer(part.states if is_states else part.vectors, np.float32)
            own = data.reshape(-1, 3 if is_states else 2).tolist()
            sent.setdefault((type(part), part.job), []).extend(own)
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
        (DenseVectors, 1): [[0, 0], [3, -3]],
        (TokenStates, 2): [[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]],
    }


def test_a_step_without_states_says_nothing_of_them() -> None:
    config = execution_config(task="embed", max_model_len=16, max_step_tokens=32)
    scheduler = PrefillOnlyScheduler(config, 0)
    add(scheduler, 1, [4, 2], states=False)
    batch = scheduler.schedule(None)
    assert batch is not None
    assert scheduler.build(batch).token_states == b""
    assert batch.num_states.tolist() == [0, 0]


async def test_states_are_placed_by_item(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, script):
        call = asyncio.create_task(client.encode(StatesCall, texts=["a", "b", "c"]))
        job = await script.job()
        assert isinstance(job, EncodeJob)
        assert job.token_states
        await script.send(Outputs(accepted=[Accepted(job.id, [2, 1, 3])]))
        for rows, numbers in (([2, 0], [3, 4, 5, 0, 1]), ([1], [2])):
            data = np.array([[number, -number] for number in numbers], np.float32)
            part = TokenStates(job.id, np.array(rows, np.int32).tobytes(), data.tobytes())
            await script.send(Outputs(encoded=[part]))
        encoded = await asyncio.wait_for(call, PATIENCE)
        assert encoded.states.tolist() == [[number, -number] for number in range(6)]
        assert encoded.prompt_tokens == [2, 1, 3]


async def test_a_job_of_too_many_states_is_aborted_before_it_runs(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(encode_calls, "MAX_STATE_NUMBERS", 11)
    async with connected(tmp_path) as (client, script):
        call = asyncio.create_task(client.encode(StatesCall, texts=["a", "b"]))
        job = await script.job()
        part = TokenStates(
            job.id, np.array([1], np.int32).tobytes(), np.ones(6, np.float32).tobytes()
        )
        await script.send(Outputs(accepted=[Accepted(job.id, [3, 3])], encoded=[part]))
        with pytest.raises(RefusalError, match="12 numbers; an answer takes 11") as refused:
            await asyncio.wait_for(call, PATIENCE)
        assert refused.value.code == "too_large"
        assert await script.receive() == Abort([job.id])


async def test_another_kind_of_answer_fails_the_job(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, script):
        call = asyncio.create_task(client.encode(VectorsCall, texts=["a"]))
        job = await script.job()
        part = TokenStates(job.id, bytes(4), bytes(8))
        await script.send(Outputs(accepted=[Accepted(job.id, [1])], encoded=[part]))
        with pytest.raises(RefusalError, match="this model returns TokenStates"):
            await asyncio.wait_for(call, PATIENCE)
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
