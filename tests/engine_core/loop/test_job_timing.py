"""What a client learns of the time that its job took before its first answer."""

import threading
from typing import Any

import pytest

from engine_core.messages import Abort, EncodeJob, GenerateJob, JobTiming, SamplingParams
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.workflows.tokenizer_threads import _Lane
from tests.engine_core.fake_transport import Engine
from tests.engine_core.simulated_model import ids
from tests.patience import PATIENCE

A = b"client"
ITERATION = 1e-4


def timings(engine: Engine) -> dict[int, JobTiming]:
    told = [timing for outputs in engine.clients.outputs(A) for timing in outputs.timings]
    assert len({timing.id for timing in told}) == len(told), "each job is told once"
    return {timing.id: timing for timing in told}


def generate(job: int, length: int, tokens: int, n: int = 1, first: int = 3) -> GenerateJob:
    prompt = ids(*range(first, first + length))
    return GenerateJob(job, params=SamplingParams(max_tokens=tokens), ids=[prompt], n=n)


@pytest.fixture
def engine(word_tokenizer: Tokenizer) -> Engine:
    return Engine(
        word_tokenizer, "LlamaForCausalLM", 24, max_running=1, max_step_tokens=4, max_model_len=64
    )


def test_a_job_waits_for_a_slot_and_is_computed_in_chunks(engine: Engine) -> None:
    engine.clients.put(A, generate(1, length=4, tokens=6))
    engine.clients.put(A, generate(2, length=24, tokens=1, first=9))
    engine.iterate_until(lambda: len(timings(engine)) == 2)
    first, second = timings(engine)[1], timings(engine)[2]
    assert first.tokenize == first.queue == 0.0
    # The only slot is taken until the first job has its tokens; then six chunks follow.
    assert second.queue >= 3 * ITERATION
    assert second.prefill >= 3 * ITERATION > first.prefill


def test_it_is_told_with_the_first_token_of_any_row(engine: Engine) -> None:
    engine.clients.put(A, generate(1, length=4, tokens=5, n=3))
    engine.iterate_until(lambda: timings(engine))
    messages = engine.clients.outputs(A)
    (told,) = [outputs for outputs in messages if outputs.timings]
    assert {row.row for outputs in messages for row in outputs.rows} == {r.row for r in told.rows}
    engine.run(40)
    assert len(timings(engine)) == 1


def test_what_the_cache_held_is_counted(engine: Engine) -> None:
    for job in (1, 2):
        engine.clients.put(A, generate(job, length=12, tokens=2))
        engine.iterate_until(lambda job=job: job in timings(engine))
    block = engine.config.execution.block_size
    assert [timings(engine)[job].cached for job in (1, 2)] == [0, 11 // block * block]


def test_a_job_that_never_answers_is_not_told(engine: Engine) -> None:
    engine.clients.put(A, generate(1, length=12, tokens=2))
    engine.iterate()
    engine.clients.put(A, Abort([1]))
    engine.run(20)
    assert not timings(engine)


def test_an_encode_job_is_told_with_its_last_row(word_tokenizer: Tokenizer) -> None:
    engine = Engine(
        word_tokenizer, "BertModel", 0, task="embed", max_model_len=8, max_step_tokens=8
    )
    engine.clients.put(A, EncodeJob(7, ids=[ids(4, 5, 6, 7, 8)] * 4))
    engine.iterate_until(lambda: timings(engine))
    parts = [part for outputs in engine.clients.outputs(A) for part in outputs.encoded]
    assert len(parts) == 4, "a step holds one row"
    assert engine.clients.outputs(A)[-1].timings == [timings(engine)[7]]
    assert timings(engine)[7].prefill >= 2 * ITERATION
    assert timings(engine)[7].cached == 0


def test_tokenizing_is_part_of_it(
    word_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, may_end = _Lane._encode, threading.Event()

    def held(lane: _Lane, jobs: Any, slices: Any) -> None:
        assert may_end.wait(PATIENCE)
        encode(lane, jobs, slices)

    monkeypatch.setattr(_Lane, "_encode", held)
    engine = Engine(word_tokenizer, "LlamaForCausalLM", 24, max_model_len=64)
    params = SamplingParams(max_tokens=1)
    engine.clients.put(A, GenerateJob(1, params=params, texts=["a b c"]))
    engine.run(3)
    may_end.set()
    engine.iterate_until(lambda: timings(engine))
    assert timings(engine)[1].tokenize >= 2 * ITERATION
