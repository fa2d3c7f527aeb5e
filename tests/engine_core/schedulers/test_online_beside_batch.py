"""What clients notice of a batch, in simulated time: a whole engine core, over a worker that takes
the times of an 8B model."""

import math
import random
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from tests.engine_core.configs import LLAMA_8B
from tests.engine_core.timed_worker import TimedEngine
from workers.contract.messages import StepInput

SECONDS, REQUESTS, RATE = 3.2, 24, 8.0
PROMPT, OUTPUT = 256, 24


def seconds_of(step: StepInput, tile: int = 1) -> float:
    """4 ms, and 23 ms for 1,024 tokens. A tile that is not full takes as long as one that is."""
    return 4e-3 + math.ceil(len(step.tokens) / 4 / tile) * tile * 19e-6


@dataclass
class Measured:
    """Seconds to the first token of each request, and a token thereafter; tokens of the batch."""

    first: list[float] = field(default_factory=list[float])
    later: list[float] = field(default_factory=list[float])
    batch_tokens: int = 0


def measured(tokenizer, *, batch: bool, online: bool, tiles: bool = False) -> Measured:
    timed = TimedEngine(
        tokenizer,
        partial(seconds_of, tile=256 if tiles else 1),
        devices=("cuda:0" if tiles else "cpu",),
        tick=4e-4,
        blocks=6000,
        model=LLAMA_8B,
        block_size=32,
        max_running=512,
        max_step_tokens=8192,
        max_model_len=2048,
        max_pending_rows=10_000,
        max_pending_tokens=10_000_000,
    )
    if batch:
        for _ in range(300):
            timed.put_batch(prefix=500, own=50, max_tokens=25, count=16)
    drawn = random.Random(1)
    arrivals = np.cumsum([drawn.expovariate(RATE) for _ in range(REQUESTS)]).tolist()
    begun: dict[int, float] = {}
    times: dict[int, list[float]] = {}
    result, clients, worker = Measured(), timed.engine.clients, timed.worker
    while worker.now < SECONDS:
        while online and arrivals and arrivals[0] <= worker.now:
            begun[timed.put(PROMPT, OUTPUT)] = arrivals.pop(0)
        timed.iterate()
        for outputs in clients.outputs(b"client"):
            for row in outputs.rows:
                times.setdefault(row.job, []).append(worker.now)
        result.batch_tokens += sum(len(each.rows) for each in clients.outputs(b"batch"))
        clients.sent.clear()
    for job, got in times.items():
        result.first.append(got[0] - begun[job])
        if len(got) == OUTPUT:
            result.later.append((got[-1] - got[0]) / (OUTPUT - 1))
    return result


def test_clients_wait_little_beside_a_batch_and_the_batch_goes_on(word_tokenizer) -> None:
    idle = measured(word_tokenizer, batch=False, online=True)
    alone = measured(word_tokenizer, batch=True, online=False)
    both = measured(word_tokenizer, batch=True, online=True)
    assert len(both.first) == len(idle.first) == REQUESTS
    assert np.median(both.first) <= np.median(idle.first) + 40e-3
    assert max(both.first) <= max(idle.first) + 120e-3
    assert np.median(both.later) <= 30e-3
    assert both.batch_tokens >= 0.8 * alone.batch_tokens


@pytest.mark.long
def test_short_steps_of_a_gpu_compute_little_in_vain(word_tokenizer) -> None:
    alone = measured(word_tokenizer, batch=True, online=False, tiles=True)
    both = measured(word_tokenizer, batch=True, online=True, tiles=True)
    assert np.median(both.later) <= 30e-3
    assert both.batch_tokens >= 0.8 * alone.batch_tokens
