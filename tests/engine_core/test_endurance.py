"""Nothing stays behind after many requests."""

import gc

import numpy as np
import pytest

from engine_core.messages import Abort, EndRow, GenerateJob, SamplingParams
from engine_core.schedulers.decoder import DecoderScheduler
from tests.engine_core.fake_transport import Engine
from tests.engine_core.integrity import check_blocks

CLIENT = b"client"
BLOCKS = 24
_AT_ONCE = 50


def job_of(number: int) -> GenerateJob:
    """Its prompt has one to five blocks; many have a common beginning."""
    random = np.random.default_rng(number)
    length, common = random.integers(1, 20, 2).tolist()
    prompt = np.full(length, 7, np.int32)
    prompt[common:] = random.integers(0, 50, len(prompt[common:]))
    params = SamplingParams(max_tokens=int(random.integers(0, 12)))
    return GenerateJob(number, params=params, ids=[prompt.tobytes()])


def serve(engine: Engine, numbers: range) -> int:
    """Serve these jobs, 50 at a time; every tenth is aborted or ended by the client. Returns how
    many rows have finished."""
    finished = 0
    for first in numbers[::_AT_ONCE]:
        for number in range(first, first + _AT_ONCE):
            engine.clients.put(CLIENT, job_of(number))
        engine.run(3)
        for job in range(first, first + _AT_ONCE, 10):
            engine.clients.put(CLIENT, Abort([job]) if job % 20 else EndRow(job, 0))
        engine.serve()
        for outputs in engine.clients.outputs(CLIENT):
            assert not outputs.failed
            finished += sum(row.finish is not None for row in outputs.rows)
        engine.clients.sent.clear()
    return finished


@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.long)])
def test_thousands_of_requests_leave_nothing_behind(word_tokenizer, stages: int) -> None:
    engine = Engine(word_tokenizer, "LlamaForCausalLM", BLOCKS, num_stages=stages, max_running=16)
    finished = serve(engine, range(500))
    gc.collect()
    objects = len(gc.get_objects())
    finished += serve(engine, range(500, 3500))
    gc.collect()
    assert len(gc.get_objects()) < objects + 200
    assert finished >= 3000
    scheduler = engine.core._scheduler
    assert isinstance(scheduler, DecoderScheduler)
    usage = scheduler.usage()
    assert usage.cached_tokens > 0
    assert usage.preemptions > 0
    engine.assert_idle()
    check_blocks(scheduler.kv)
    assert not any(scheduler._rows.num_jobs)
    assert not scheduler._running.prompts
