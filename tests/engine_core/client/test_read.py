"""The client's side of jobs that read log-probabilities."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from engine_core.messages import (
    Abort,
    Accepted,
    EncodedRows,
    Failed,
    JobOptions,
    JobTiming,
    Outputs,
    ReadJob,
)
from engine_core.refusal import RefusalError
from tests.engine_core.client.test_engine_client import Script, connected, int32

VALUES = [[-1.0, -2.0], [-3.0], [-0.5, -0.25, -0.125]]
GIVEN = {
    "pieces": ["a", "b", "c"],
    "prompts": [(0, 1), (0, 2), (0,)],
    "tokens": [int32([1, 2]), int32([3]), int32([4, 5, 6])],
}


def part(job: int, *rows: int) -> EncodedRows:
    values = np.array([value for row in rows for value in VALUES[row]], np.float32)
    counts = int32(len(VALUES[row]) for row in rows)
    return EncodedRows(job, int32(rows), values.tobytes(), counts)


async def received(script: Script) -> ReadJob:
    job = await script.receive()
    assert isinstance(job, ReadJob)
    return job


async def test_values_come_in_the_order_of_the_rows(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, script):
        options = JobOptions(cache_salt="salt", priority=3)
        call = asyncio.create_task(client.read(**GIVEN, options=options))
        job = await received(script)
        assert (job.pieces, job.prompts, job.tokens) == tuple(GIVEN.values())
        assert (job.cache_salt, job.priority, job.batch) == ("salt", 3, False)
        accepted = Accepted(job.id, [12, 13, 9], piece_tokens=[9, 3, 4])
        await script.send(Outputs(accepted=[accepted], encoded=[part(job.id, 2)]))
        timing = JobTiming(job.id, 0.1, 0.2, 0.3, cached=24, found=8)
        await script.send(Outputs(encoded=[part(job.id, 1, 0)], timings=[timing]))
        read = await call
        assert [values.tolist() for values in read.values] == VALUES
        assert (read.prompt_tokens, read.piece_tokens) == ([12, 13, 9], [9, 3, 4])
        assert (read.cached, read.timing) == (8, timing)


async def test_a_refusal_or_a_failure_is_raised_and_leaving_aborts(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, script):
        for accepted in ([], [[12, 13, 9]]):
            call = asyncio.create_task(client.read(**GIVEN))
            job = (await received(script)).id
            failed = Failed(job, "context_length_exceeded", "prompts[1] has 99", "prompts[1]")
            given = [Accepted(job, tokens) for tokens in accepted]
            await script.send(Outputs(accepted=given, failed=[failed]))
            with pytest.raises(RefusalError, match="prompts") as refused:
                await call
            assert (refused.value.code, refused.value.param) == (failed.code, "prompts[1]")
        call = asyncio.create_task(client.read(**GIVEN))
        job = (await received(script)).id
        await script.send(Outputs(accepted=[Accepted(job, [12, 13, 9])], encoded=[part(job, 0)]))
        await asyncio.sleep(0.01)
        call.cancel()
        assert await script.receive() == Abort([job])
