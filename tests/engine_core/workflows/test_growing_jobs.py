"""Texts are embedded as they are tokenized, and jobs end as if they had come whole."""

import threading
from typing import Any

import numpy as np
import pytest

from engine_core.loop.admission import InFlight
from engine_core.messages import Abort, EncodeJob, Failed, GenerateJob, SamplingParams
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.workflows.tokenizer_threads import _Lane
from tests.engine_core.fake_transport import Engine
from tests.engine_core.simulated_model import ids
from tests.engine_core.test_core import Ledger
from tests.patience import PATIENCE

A = b"client-a"
TEXTS = 20_000


class Turnstile:
    """Lets the tokenizer's threads through, a call each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        encode, self.calls = _Lane._encode, threading.Semaphore(0)

        def held(lane: _Lane, parts: Any, special: bool) -> None:
            assert self.calls.acquire(timeout=PATIENCE)
            encode(lane, parts, special)

        monkeypatch.setattr(_Lane, "_encode", held)


@pytest.fixture
def turnstile(monkeypatch: pytest.MonkeyPatch) -> Turnstile:
    return Turnstile(monkeypatch)


@pytest.fixture(params=[("BertModel", 0), ("LlamaModel", 500)], ids=["encoder", "decoder"])
def engine(request, word_tokenizer: Tokenizer) -> Engine:
    return Engine(
        *(word_tokenizer, *request.param),
        task="embed",
        max_model_len=16,
        max_step_tokens=2048,
        max_pending_rows=TEXTS,
        max_pending_tokens=1 << 22,
    )


def vectors(engine: Engine) -> int:
    return len(Ledger(engine).vectors)


def test_the_last_of_many_that_is_too_long_fails_the_job(
    engine: Engine, turnstile: Turnstile
) -> None:
    texts = ["w1 w2"] * (TEXTS - 1) + ["w5 " * 17]
    engine.clients.put(A, EncodeJob(1, texts=texts))
    engine.iterate()
    assert Ledger(engine).accepted == {1}, "before any text is tokenized"
    turnstile.calls.release()
    engine.iterate_until(lambda: vectors(engine), iterations=10**7)
    assert engine.core._budget.held.tokens > 4 * TEXTS, "bytes count until all are known"
    turnstile.calls.release(2)
    engine.iterate_until(engine.is_idle, iterations=10**7)
    message = f"input[{TEXTS - 1}] has 17 tokens; this model takes at most 16"
    failed = Failed(1, "context_length_exceeded", message, f"input[{TEXTS - 1}]")
    assert Ledger(engine).failed == {1: failed}
    assert 0 < vectors(engine) < TEXTS
    engine.assert_idle()


def test_rows_bring_their_lengths_in_the_order_of_the_texts(engine: Engine) -> None:
    texts = ["w7 " * (number % 13 + 1) for number in range(TEXTS)]
    engine.clients.put(A, EncodeJob(1, texts=texts))
    engine.iterate_until(engine.is_idle, iterations=10**7)
    parts = [part for outputs in engine.clients.outputs(A) for part in outputs.encoded]
    rows, lens = (
        np.frombuffer(b"".join(data), np.int32)
        for data in zip(*((part.rows, part.lens) for part in parts), strict=True)
    )
    assert np.array_equal(np.sort(rows), np.arange(TEXTS))
    assert np.array_equal(lens, rows % 13 + 1)
    assert engine.core._statistics._counted.prompt_tokens == lens.sum()
    assert engine.core._budget.held == InFlight()
    engine.assert_idle()


def test_a_lone_text_passes_a_job_whose_texts_are_not_all_tokenized(
    engine: Engine, turnstile: Turnstile
) -> None:
    engine.clients.put(A, EncodeJob(1, texts=["w1 " * 16] * TEXTS))
    engine.iterate()
    turnstile.calls.release()
    engine.iterate_until(lambda: vectors(engine), iterations=10**7)
    engine.clients.put(A, EncodeJob(2, texts=["w9"]))
    engine.iterate()
    turnstile.calls.release(3)  # its turn comes behind the slice that is begun and the next
    engine.iterate_until(lambda: (2, 0) in Ledger(engine).vectors, iterations=10**7)
    assert vectors(engine) < TEXTS
    engine.clients.put(A, Abort([1]))
    turnstile.calls.release(2)
    engine.iterate_until(engine.is_idle, iterations=10**7)
    engine.assert_idle()


def test_a_generate_job_waits_for_all_its_texts(
    word_tokenizer: Tokenizer, turnstile: Turnstile
) -> None:
    engine = Engine(word_tokenizer, "LlamaForCausalLM", 24, max_pending_tokens=1 << 22)
    texts = ["w1 " * 30] * 60
    params = SamplingParams(max_tokens=1)
    engine.clients.put(A, GenerateJob(1, params=params, texts=texts))
    engine.run(3)
    assert not engine.clients.outputs(A)
    turnstile.calls.release()
    engine.iterate_until(engine.is_idle)
    assert len(engine.clients.outputs(A)[0].accepted[0].prompt_tokens) == len(texts)


def test_a_job_of_ids_is_known_at_once(engine: Engine) -> None:
    engine.serve(EncodeJob(1, ids=[ids(1, 2)] * 3))
    assert vectors(engine) == 3
    assert engine.clients.outputs(A)[0].accepted[0].prompt_tokens == []
