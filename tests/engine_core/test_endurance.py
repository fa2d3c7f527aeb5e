"""Nothing stays behind after many requests."""

import gc

import numpy as np
import pytest

from engine_core.loop.admission import InFlight
from engine_core.messages import Abort, EndRow, GenerateJob, SamplingParams
from engine_core.schedulers.decoder import DecoderScheduler
from tests.engine_core.fake_transport import Engine
from tests.engine_core.integrity import check_blocks

CLIENT = b"client"
BLOCKS = 24
_AT_ONCE = 50


class Requests:
    """Concurrent requests, some of which are aborted or ended by their client."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._random = np.random.default_rng(3)
        self.finished = self.failed = self._next = 0

    def serve(self, count: int) -> None:
        """`count` rows, 50 jobs at a time; every tenth is aborted or ended by the client."""
        last = self._next + count
        while self._next < last:
            for _ in range(_AT_ONCE):
                self._engine.clients.put(CLIENT, self._job())
            for _ in range(3):
                self._engine.iterate()
            for job in range(self._next - _AT_ONCE, self._next, 10):
                leave = Abort([job]) if job % 20 else EndRow(job, 0)
                self._engine.clients.put(CLIENT, leave)
            self._engine.iterate_until(lambda: not self._engine.core._jobs)
            self._read()

    def _job(self) -> GenerateJob:
        self._next += 1
        # Prompts of one to five blocks, many with a common beginning.
        length, common = self._random.integers(1, 20, 2).tolist()
        prompt = np.full(length, 7, np.int32)
        prompt[common:] = self._random.integers(0, 50, len(prompt[common:]))
        params = SamplingParams(max_tokens=int(self._random.integers(0, 12)))
        return GenerateJob(self._next - 1, params=params, ids=[prompt.tobytes()])

    def _read(self) -> None:
        for outputs in self._engine.clients.outputs(CLIENT):
            self.failed += len(outputs.failed)
            self.finished += sum(row.finish is not None for row in outputs.rows)
        self._engine.clients.sent.clear()


@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.long)])
def test_thousands_of_requests_leave_nothing_behind(word_tokenizer, stages: int) -> None:
    engine = Engine(word_tokenizer, "LlamaForCausalLM", BLOCKS, num_stages=stages, max_running=16)
    requests = Requests(engine)
    requests.serve(500)
    gc.collect()
    objects = len(gc.get_objects())
    requests.serve(3000)
    gc.collect()
    assert len(gc.get_objects()) < objects + 200
    assert requests.failed == 0
    assert requests.finished >= 3000
    scheduler = engine.core._scheduler
    assert isinstance(scheduler, DecoderScheduler)
    usage = scheduler.usage()
    assert (usage.running, usage.waiting, usage.kv_blocks_used) == (0, 0, 0)
    assert usage.cached_tokens > 0
    assert usage.preemptions > 0
    check_blocks(scheduler.kv)
    assert not any(scheduler._rows.num_jobs)
    assert not scheduler._running.prompts
    assert not engine.core._in_flight
    assert engine.core._budget.held == InFlight()
