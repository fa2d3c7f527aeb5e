"""Constrained jobs through the loop: compiled before they are accepted, masked, ended once."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.messages import GenerateJob, Grammar, SamplingParams, Trace, TracedSteps
from engine_core.structured.matcher import Matcher
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.workflows.generate import DecoderPreprocessor
from tests.engine_core.configs import MODEL
from tests.engine_core.fake_transport import Engine
from tests.engine_core.grammars import GRAMMARS, reference_within
from tests.engine_core.masked_driver import COMPILER, STOPS, TOKENIZER
from tests.engine_core.simulated_model import ids, reference
from tests.engine_core.test_core import A, Ledger, RandomLife, served

BAD = Grammar("regex", "a(", "regex")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    TOKENIZER.raw.save(str(folder / "tokenizer.json"))
    return folder


def engine_of(folder: Path, tokenizer: Tokenizer = TOKENIZER, **changes) -> Engine:
    model = msgspec.structs.replace(MODEL, path=str(folder))
    return Engine(tokenizer, "LlamaForCausalLM", num_blocks=24, model=model, **changes)


def constrained(grammar: Grammar, max_tokens: int = 30) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, eos_token_ids=STOPS, grammar=grammar)


def job_of(number: int, grammar: Grammar | None, max_tokens: int = 30) -> GenerateJob:
    """Without a grammar it is free, and ends at no token."""
    params = constrained(grammar, max_tokens) if grammar else SamplingParams(max_tokens=max_tokens)
    return GenerateJob(number, params=params, ids=[ids(3)])


def assert_nothing_left(engine: Engine) -> None:
    engine.assert_idle()
    preprocessor = engine.core._preprocessor
    assert isinstance(preprocessor, DecoderPreprocessor)
    engine.iterate_until(lambda: not preprocessor._compiler_threads._waiting)


def test_rows_of_texts_are_compiled_for_masked_and_ended(folder: Path) -> None:
    engine = engine_of(folder)
    jobs = [
        GenerateJob(job, params=constrained(grammar), texts=["3a"], n=2)
        for job, grammar in enumerate(GRAMMARS)
    ]
    ledger = served(engine, *jobs)
    for job, grammar in enumerate(GRAMMARS):
        tokens, finish = reference_within(COMPILER, [3, 10], constrained(grammar))
        for row in range(2):
            assert ledger.tokens[job, row] == tokens
            assert ledger.finished[job, row] == finish
    assert_nothing_left(engine)


@pytest.mark.parametrize(
    ("grammar", "field", "reason"),
    [(BAD, "regex", "regex: "), (GRAMMARS[0], "choice", "no tokenizer")],
    ids=["bad grammar", "no tokenizer"],
)
def test_a_grammar_that_is_refused_refuses_its_job_alone(
    folder: Path, tmp_path: Path, word_tokenizer: Tokenizer, grammar: Grammar, field: str,
    reason: str,
) -> None:  # fmt: skip
    engine = engine_of(folder) if grammar is BAD else engine_of(tmp_path, word_tokenizer)
    ledger = served(engine, job_of(1, grammar), job_of(2, None, 3))
    assert 1 not in ledger.accepted
    assert (ledger.failed[1].code, ledger.failed[1].param) == ("invalid_request", field)
    assert reason in ledger.failed[1].message
    assert ledger.tokens[2, 0] == reference([3], 3)
    assert_nothing_left(engine)


@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.long), 3])
@settings(max_examples=20)
@given(data=st.data())
def test_every_job_gets_exactly_one_end(folder: Path, stages: int, data: st.DataObject) -> None:
    """Free, constrained and impossible jobs of two clients, with aborts at random iterations."""
    engine = engine_of(folder, num_stages=stages, max_model_len=64)
    jobs: dict[tuple[bytes, int], tuple[SamplingParams, int]] = {}
    life = RandomLife(engine, data)
    for job_id in range(data.draw(st.integers(1, 10))):
        grammar = data.draw(st.none() | st.sampled_from([*GRAMMARS, BAD]))
        params = SamplingParams(max_tokens=data.draw(st.integers(1, 30)), grammar=grammar)
        n = data.draw(st.integers(1, 3))
        job = GenerateJob(job_id, params=params, ids=[ids(1, job_id)], n=n)
        jobs[life.put(job)] = (params, n)
    engine.serve()
    for (client, job_id), (params, n) in jobs.items():
        ledger = Ledger(engine, client)
        is_aborted = (client, job_id) in life.aborted
        if params.grammar == BAD:
            assert job_id not in ledger.accepted
            assert is_aborted or ledger.failed[job_id].param == "regex"
        elif not is_aborted:
            expected = reference([1, job_id], params.max_tokens or 0)
            if params.grammar is not None:
                expected, _ = reference_within(COMPILER, [1, job_id], params)
            for row in range(n):
                assert ledger.tokens[job_id, row] == expected
                assert (job_id, row) in ledger.finished
    assert_nothing_left(engine)


def test_no_job_is_left_if_the_only_one_ends_by_its_first_mask(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time until the next job counts as no stage's idle time."""
    monkeypatch.setattr(Matcher, "finish_mask", lambda *_: False)
    engine = engine_of(folder)
    engine.clients.put(A, Trace(0.5))
    assert served(engine, job_of(1, GRAMMARS[0])).failed[1].code == "row_failed"
    engine.clients.put(A, job_of(2, None, 2))
    engine.iterate_until(lambda: not engine.core._tracer._ends)
    traced = [message for message in engine.clients.sent[A] if isinstance(message, TracedSteps)]
    continued = [step.continued for message in traced for step in message.steps]
    assert continued == [False, False, True]
