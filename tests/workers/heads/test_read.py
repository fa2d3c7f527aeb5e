"""A generator reads the log-probabilities of transformers, whatever is beside or cached."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.messages import GenerateJob, JobMessage, ReadJob, SamplingParams
from tests.engine_core.fake_transport import Engine
from tests.engine_core.simulated_model import ids
from tests.engine_core.test_core import A
from tests.workers.checkpoints import LLAMA, save_llama
from tests.workers.contract.checkpoint.library_folders import write_word_tokenizer
from tests.workers.inline_engine import shifted_position
from tests.workers.stage.encoding_engine import cached_tokens, start_engine
from tests.workers.staged_engine import Visit, serve
from tests.workers.stages import Stages
from workers.contract.token_sampling import TokenSampling

TOLERANCE, REPEATED = 1e-4, 1e-5
_NAMED = {"unk_token": "<unk>", "eos_token": "<end>"}
WORDS = [f"w{number}" for number in range(LLAMA["vocab_size"] - len(_NAMED))]
DRAW = random.Random(5)


def words(count: int) -> str:
    return " ".join(DRAW.choices(WORDS, k=count))


INPUT, ENDING = words(60), words(3)
QUESTIONS = [words(count) for count in (1, 2, 7, 30, 9, 9, 12)]
ROWS = range(len(QUESTIONS))
PIECES = [INPUT, *QUESTIONS, ENDING]
LABELS = [DRAW.sample(range(LLAMA["vocab_size"]), 1 + 5 * row) for row in ROWS]


def job(rows: Sequence[int] = ROWS, number: int = 1, **options: Any) -> ReadJob:
    """Questions about the input."""
    prompts = [(0, 1 + row, len(PIECES) - 1) for row in rows]
    tokens = [ids(*LABELS[row]) for row in rows]
    return ReadJob(number, pieces=PIECES, prompts=prompts, tokens=tokens, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generator")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    model = save_llama(folder)
    write_word_tokenizer(folder, [*WORDS, *_NAMED.values()], "$A <end>", _NAMED)
    return model


@pytest.fixture(scope="module")
def stages(folder: Path, model: Any) -> dict[int, Stages]:
    return {count: Stages(folder, num_stages=count) for count in (1, 2)}


def expected(model: Any, pieces: Sequence[str], read: ReadJob) -> list[np.ndarray]:
    values: list[np.ndarray] = []
    for prompt, tokens in zip(read.prompts, read.tokens, strict=True):
        row = [int(word[1:]) for piece in prompt for word in pieces[piece].split()]
        with torch.inference_mode():
            logits = model(torch.tensor([row])).logits[0, -1].float()
        values.append(logits.log_softmax(-1).numpy()[np.frombuffer(tokens, np.int32)])
    return values


def answers(engine: Engine, *jobs: JobMessage) -> dict[int, list[np.ndarray]]:
    """The values of each read job's rows. Every row came exactly once."""
    earlier = len(engine.clients.outputs(A))
    with torch.inference_mode():
        serve(engine, [Visit(each, at % 3) for at, each in enumerate(jobs)], random.Random(1))
    found: dict[int, dict[int, np.ndarray]] = {}
    for outputs in engine.clients.outputs(A)[earlier:]:
        assert not outputs.failed
        for part in outputs.encoded:
            ends = np.cumsum(np.frombuffer(part.counts, np.int32))[:-1]
            values = np.split(np.frombuffer(part.values, np.float32), ends)
            rows = dict(zip(np.frombuffer(part.rows, np.int32).tolist(), values, strict=True))
            own = found.setdefault(part.job, {})
            assert not own.keys() & rows.keys()
            own |= rows
    engine.assert_idle()
    return {number: [rows[row] for row in range(len(rows))] for number, rows in found.items()}


def off_by(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    return max(np.abs(one - other).max() for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("max_step_tokens", [13, 256])
def test_values_are_those_of_transformers(
    folder: Path,
    model: Any,
    stages: dict[int, Stages],
    max_step_tokens: int,
    num_stages: int,
    batch: bool,
) -> None:
    engine = start_engine(folder, stages[num_stages], max_step_tokens=max_step_tokens)
    cached = cached_tokens(engine)
    (found,) = answers(engine, job(batch=batch)).values()
    assert [len(values) for values in found] == list(map(len, LABELS))
    assert off_by(found, expected(model, PIECES, job())) < TOLERANCE
    assert cached_tokens(engine) - cached >= (len(ROWS) - 1) * 60
    assert engine.core._scheduler.usage().generated_tokens == 0


def test_values_depend_on_nothing_else(folder: Path, stages: dict[int, Stages]) -> None:
    """Alone, in another order, cold and cached, in chunks and stages, beside what is generated."""
    (alone,) = zip(
        *[answers(start_engine(folder, stages[1]), job([row]))[1] for row in ROWS], strict=True
    )
    costly = SamplingParams(
        sampling=TokenSampling(frequency_penalty=1.5, repetition_penalty=1.7),
        logit_bias=dict.fromkeys(LABELS[1], 50.0),
        seed=1,
        max_tokens=8,
    )
    strangers = [GenerateJob(2 + at, params=costly, texts=[INPUT]) for at in range(3)]
    backwards = [*reversed(ROWS)]
    ways: list[tuple[int, dict[str, Any]]] = [
        (1, {}),
        (1, {"max_step_tokens": 17}),
        (2, {"steps_ahead": 0}),
    ]
    for num_stages, changes in ways:
        engine = start_engine(folder, stages[num_stages], **changes)
        assert off_by(answers(engine, job())[1], alone) < REPEATED
        assert off_by(answers(engine, job(), *strangers)[1], alone) < REPEATED
        found = answers(engine, job(backwards, cache_salt="another"))[1]
        assert off_by(found[::-1], alone) < REPEATED


def test_a_wrong_position_would_be_seen(
    folder: Path, model: Any, stages: dict[int, Stages]
) -> None:
    engine = start_engine(folder, stages[1], shifted_position(at=2), max_step_tokens=13)
    (found,) = answers(engine, job()).values()
    assert off_by(found, expected(model, PIECES, job())) > 100 * TOLERANCE


@settings(max_examples=25)
@given(data=st.data())
def test_random_pieces(
    folder: Path, model: Any, stages: dict[int, Stages], data: st.DataObject
) -> None:
    """Also empty ones, prompts that are equal, and tokens that are read twice."""
    lengths = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=8))
    draw = random.Random(data.draw(st.integers(0, 99)))
    pieces = [" ".join(draw.choices(WORDS[:30], k=length)) for length in lengths]
    numbers = st.lists(st.integers(0, len(pieces) - 1), min_size=1, max_size=5).filter(
        lambda prompt: any(lengths[piece] for piece in prompt)
    )
    prompts = data.draw(st.lists(numbers, min_size=1, max_size=12))
    tokens = [draw.choices(range(LLAMA["vocab_size"]), k=draw.randint(1, 9)) for _ in prompts]
    read = ReadJob(
        1,
        pieces=pieces,
        prompts=list(map(tuple, prompts)),
        tokens=[ids(*own) for own in tokens],
        batch=data.draw(st.booleans()),
    )
    limit = data.draw(st.sampled_from([5, 64, 256]))
    engine = start_engine(folder, stages[data.draw(st.sampled_from([1, 2]))], max_step_tokens=limit)
    (found,) = answers(engine, read).values()
    assert off_by(found, expected(model, pieces, read)) < TOLERANCE
