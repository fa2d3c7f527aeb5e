"""Jobs that read log-probabilities: what is refused, what is computed, and one end for each."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.loop.admission import job_size, own_sizes
from engine_core.messages import (
    Abort,
    Accepted,
    EndRow,
    JobTiming,
    KeyShare,
    ReadJob,
    ResetCache,
)
from engine_core.schedulers.decoder import DecoderScheduler
from engine_core.tokenization.tokenizer import Tokenizer
from tests.engine_core.driver import prompt_of
from tests.engine_core.fake_transport import Engine
from tests.engine_core.integrity import check_blocks
from tests.engine_core.simulated_model import ids, read_value
from tests.engine_core.test_core import A, B, RandomLife, generate
from workers.contract.messages import LIKELIEST

Values = dict[tuple[int, int], list[float]]
"""By job and row."""


def text(tokens: Sequence[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def read_job(
    job: int,
    pieces: Sequence[Sequence[int]],
    prompts: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]] | None = None,
    **options: Any,
) -> ReadJob:
    return ReadJob(
        job,
        pieces=list(map(text, pieces)),
        prompts=list(map(tuple, prompts)),
        tokens=[ids(*own) for own in tokens or [[7]] * len(prompts)],
        **options,
    )


def expected(
    pieces: Sequence[Sequence[int]], prompt: Sequence[int], tokens: Sequence[int]
) -> list[float]:
    context = [token for piece in prompt for token in pieces[piece]]
    return [read_value(context, token) for token in tokens]


class Answers:
    """What a client has received of its read jobs, each row once and none after a failure."""

    def __init__(self, engine: Engine, client: bytes = A) -> None:
        self.values: Values = {}
        self.accepted: dict[int, Accepted] = {}
        self.failed: dict[int, tuple[str, str | None, str]] = {}
        self.timings: dict[int, JobTiming] = {}
        for outputs in engine.clients.outputs(client):
            self.accepted |= {accepted.id: accepted for accepted in outputs.accepted}
            self.timings |= {timing.id: timing for timing in outputs.timings}
            for part in outputs.encoded:
                assert part.job in self.accepted
                ends = np.cumsum(np.frombuffer(part.counts, np.int32))[:-1]
                values = np.split(np.frombuffer(part.values, np.float32), ends)
                rows = np.frombuffer(part.rows, np.int32).tolist()
                for row, own in zip(rows, values, strict=True):
                    assert (part.job, row) not in self.values
                    self.values[part.job, row] = own.tolist()
            for failed in outputs.failed:
                assert failed.id not in self.failed
                self.failed[failed.id] = failed.code, failed.param, failed.message

    def of(self, job: int) -> list[list[float]]:
        return [own for (number, _), own in sorted(self.values.items()) if number == job]


def served(engine: Engine, *jobs: ReadJob) -> Answers:
    engine.serve(*jobs)
    engine.assert_idle()
    scheduler = engine.core._scheduler
    assert isinstance(scheduler, DecoderScheduler)
    check_blocks(scheduler.kv)
    return Answers(engine)


@pytest.fixture
def engine(word_tokenizer: Tokenizer) -> Engine:
    return Engine(word_tokenizer, "LlamaForCausalLM", num_blocks=24)


def step_tokens(engine: Engine) -> int:
    """Tokens that steps have computed, as the engine counts them."""
    return engine.core._statistics._counted.step_tokens


QUESTIONS = 100


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("length", [200, 1000, 1039])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(16, 400), (128, 80)])
def test_the_input_is_computed_once(
    word_tokenizer: Tokenizer,
    block_size: int,
    num_blocks: int,
    length: int,
    batch: bool,
    stages: int,
) -> None:
    engine = Engine(
        word_tokenizer,
        "LlamaForCausalLM",
        num_blocks,
        num_stages=stages,
        block_size=block_size,
        max_model_len=4096,
        max_step_tokens=512,
        max_running=32,
        max_pending_rows=1024,
        max_pending_tokens=1 << 20,
    )
    pieces = [prompt_of(length, seed=1), *(prompt_of(40, seed=2 + at) for at in range(QUESTIONS))]
    pieces.append(prompt_of(5, seed=1000))
    prompts = [(0, 1 + at, QUESTIONS + 1) for at in range(QUESTIONS)]
    tokens = [[at % 50, (at + 9) % 50] for at in range(QUESTIONS)]
    answers = served(engine, read_job(1, pieces, prompts, tokens, batch=batch))
    for prompt, own, values in zip(prompts, tokens, answers.of(1), strict=True):
        assert values == expected(pieces, prompt, own)
    assert answers.accepted[1].prompt_tokens == [length + 45] * QUESTIONS
    assert answers.accepted[1].piece_tokens == [length, *[40] * QUESTIONS, 5]
    assert step_tokens(engine) <= 1.01 * (length + QUESTIONS * 45)
    assert answers.timings[1].found == 0
    engine.clients.sent.clear()
    before = step_tokens(engine)
    again = served(engine, read_job(2, pieces, prompts, tokens))
    assert again.of(2) == answers.of(1)
    whole = length // block_size * block_size
    assert whole <= again.timings[2].found < length + 45
    assert step_tokens(engine) - before <= QUESTIONS * 45 + block_size
    assert engine.core._scheduler.usage().generated_tokens == 0


def test_what_was_in_the_cache_is_counted_once(engine: Engine) -> None:
    pieces = [prompt_of(30, seed=1), [1, 2], [3, 4]]
    for job in (1, 2, 3):
        served(engine, read_job(job, pieces, [(0, 1), (0, 2)]))
        if job == 2:
            engine.clients.put(A, ResetCache())
    timings = Answers(engine).timings
    assert [timings[job].found for job in (1, 2, 3)] == [0, 28, 0]


SHORT, LONG = [1, 2, 3], [4] * 94


@pytest.mark.parametrize(
    ("job", "code", "param", "said"),
    [
        (read_job(1, [SHORT], [(0,), (0, 1)]), "invalid_request", "prompts[1]",
         "prompts[1] names piece 1; there are 1"),
        (read_job(1, [SHORT], [(-1,)]), "invalid_request", "prompts[0]", "names piece -1"),
        (read_job(1, [SHORT, []], [(0,), ()]), "invalid_request", "prompts[1]", "has no tokens"),
        (read_job(1, [SHORT, []], [(1, 1)]), "invalid_request", "prompts[0]", "has no tokens"),
        (read_job(1, [SHORT], [(0,), (0,)], [[7], []]), "invalid_request", "tokens[1]",
         "names no token to read"),
        (read_job(1, [SHORT], [(0,), (0,)], [[7]]), "invalid_request", "tokens",
         "tokens are given for 1 of 2 prompts"),
        (read_job(1, [SHORT], [(0,)], [[LIKELIEST, 50]]), "invalid_request", "tokens[0]", "50"),
        (read_job(1, [SHORT], [(0,)], [[-2]]), "invalid_request", "tokens[0]", "-2"),
        (read_job(1, [SHORT, LONG], [(0,), (1, 0)]), "context_length_exceeded", "prompts[1]",
         "this model's longest sequence in the KV cache is 96 tokens; prompts[1] has 97"),
        (read_job(1, [SHORT], []), "invalid_request", None, "no items"),
        (read_job(1, [SHORT], [(0,)] * 65), "too_large", None, "65"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_and_nothing_is_computed(
    engine: Engine, job: ReadJob, code: str, param: str | None, said: str
) -> None:
    failed = served(engine, job).failed[1]
    assert failed[:2] == (code, param)
    assert said in failed[2]
    assert step_tokens(engine) == 0


def test_a_prompt_may_fill_the_cache(engine: Engine) -> None:
    pieces = [SHORT[:2], LONG]
    assert served(engine, read_job(1, pieces, [(1, 0)])).of(1) == [expected(pieces, (1, 0), [7])]


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_only_a_generator_reads(word_tokenizer: Tokenizer, task: str) -> None:
    engine = Engine(word_tokenizer, "BertModel", 0, task=task, max_model_len=16)
    failed = served_refusal(engine, read_job(1, [SHORT], [(0,)]))
    assert failed[2] == f"this model does not read logits (its task: {task})"


def served_refusal(engine: Engine, job: ReadJob) -> tuple[str, str | None, str]:
    engine.serve(job)
    return Answers(engine).failed[1]


@pytest.mark.parametrize("steps", range(4))
def test_an_abort_frees_everything(engine: Engine, steps: int) -> None:
    pieces = [prompt_of(40, seed=1), *([at] * 5 for at in range(20))]
    engine.executor.allowed = steps
    engine.clients.put(A, read_job(1, pieces, [(0, 1 + at) for at in range(20)]))
    engine.iterate_until(lambda: Answers(engine).accepted)
    engine.run(8)
    engine.executor.allowed = 1_000_000
    engine.clients.put(A, EndRow(1, 19))
    engine.clients.put(A, Abort([1]))
    answers = served(engine)
    assert len(answers.of(1)) < 20
    assert 1 not in answers.timings
    assert served(engine, read_job(2, pieces, [(0, 1)])).of(2) == [expected(pieces, (0, 1), [7])]


@pytest.mark.parametrize("bad", [0, 5, 19])
def test_a_value_that_is_not_finite_fails_its_job_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    def spoilt(context: list[int], token: int) -> float:
        return np.nan if token == 13 else read_value(context, token)

    monkeypatch.setattr("tests.engine_core.simulated_model.read_value", spoilt)
    pieces = [prompt_of(40, seed=1), *([at] * 5 for at in range(20))]
    prompts = [(0, 1 + at) for at in range(20)]
    tokens = [[7, 13 if at == bad else 8] for at in range(20)]
    engine.clients.put(B, read_job(1, pieces, prompts, [[3, 4]] * 20))
    answers = served(engine, read_job(1, pieces, prompts, tokens))
    assert answers.failed[1][0] == "row_failed"
    assert len(Answers(engine, B).of(1)) == 20


def test_what_prompts_begin_with_counts_once() -> None:
    prompts = [(0, 1, 3), (0, 2, 3), (0, 1, 3), (0, 1), (2, 0), ()]
    assert [*own_sizes(prompts, [100, 10, 20, 1])] == [111, 21, 0, 0, 120, 0]
    job = ReadJob(1, pieces=["é" * 50, "a" * 10], prompts=[(0, 1)] * 3, tokens=[b"1234"] * 3)
    assert job_size(job) == (3, 110, 110)


def test_rows_that_wait_for_the_input_delay_nobody(engine: Engine) -> None:
    """Another job is not refused, and waits, for what they have to compute alone."""
    pieces = [prompt_of(60, seed=1), *([at] * 5 for at in range(20))]
    engine.executor.allowed = 0
    engine.clients.put(A, read_job(1, pieces, [(0, 1 + at) for at in range(20)]))
    engine.iterate_until(lambda: Answers(engine).accepted)
    assert engine.core._budget.held.tokens == 60 + 20 * 5
    assert engine.core._scheduler.queued_tokens <= 60 + 20 * 5
    engine.executor.allowed = 1_000_000
    assert len(served(engine).of(1)) == 20


def test_rows_whose_input_is_cached_take_little_room(word_tokenizer: Tokenizer) -> None:
    """Nothing of a batch gives way: its blocks and what the rows need fit the cache."""
    engine = Engine(
        word_tokenizer, "LlamaForCausalLM", 120, max_running=64, max_step_tokens=512, steps_ahead=0
    )
    pieces = [prompt_of(80, seed=1), *([at] * 2 for at in range(9))]
    served(engine, read_job(1, pieces, [(0, 1)]))
    engine.executor.allowed = 5
    for number in range(8):
        line = generate(100 + number, *prompt_of(8, seed=50 + number), max_tokens=20)
        engine.clients.put(B, msgspec.structs.replace(line, batch=True))
    engine.clients.put(A, read_job(2, pieces, [(0, 1 + at) for at in range(9)]))
    engine.iterate_until(lambda: 2 in Answers(engine).accepted)
    assert engine.core._scheduler.usage().running >= 8
    engine.executor.allowed = 1_000_000
    assert len(served(engine).of(2)) == 9
    assert engine.core._scheduler.usage().preemptions == 0


def drawn_job(number: int, data: st.DataObject) -> tuple[list[list[int]], ReadJob]:
    """Random pieces, and a job that may be bad."""
    pieces = data.draw(st.lists(st.lists(st.integers(0, 3), max_size=25), min_size=1, max_size=6))
    piece = st.integers(0, len(pieces) - data.draw(st.sampled_from([0, 1, 1, 1])))
    prompts = data.draw(st.lists(st.lists(piece, max_size=4), min_size=1, max_size=12))
    token = st.lists(st.integers(0, 50), max_size=4)
    job = read_job(
        number,
        pieces,
        prompts,
        [data.draw(token) or [7] for _ in prompts],
        batch=data.draw(st.booleans()),
        key=KeyShare(data.draw(st.integers(0, 2))),
        cache_salt=data.draw(st.sampled_from(["", "salt"])),
        priority=data.draw(st.integers(-1, 1)),
    )
    return pieces, job


@settings(max_examples=60)
@given(data=st.data())
def test_every_job_gets_its_values_or_one_failure(
    word_tokenizer: Tokenizer, data: st.DataObject
) -> None:
    """Random pieces, good and bad, of two clients, beside what is generated, with aborts."""
    engine = Engine(
        word_tokenizer,
        "LlamaForCausalLM",
        16,
        num_stages=data.draw(st.integers(1, 3)),
        max_model_len=60,
        max_running=data.draw(st.integers(1, 8)),
        max_step_tokens=data.draw(st.sampled_from([3, 32])),
    )
    life = RandomLife(engine, data)
    jobs: dict[tuple[bytes, int], tuple[list[list[int]], ReadJob]] = {}
    for number in range(1, data.draw(st.integers(2, 8))):
        pieces, job = drawn_job(number, data)
        jobs[life.put(job)] = pieces, job
        life.put(generate(100 + number, *data.draw(st.sampled_from(pieces)), 9, max_tokens=5))
    served(engine)
    for (client, number), (pieces, job) in jobs.items():
        answers = Answers(engine, client)
        if (client, number) in life.aborted:
            continue
        if number in answers.failed:
            assert not answers.of(number)
            continue
        wanted = [
            expected(pieces, prompt, np.frombuffer(own, np.int32).tolist())
            for prompt, own in zip(job.prompts, job.tokens, strict=True)
        ]
        assert answers.of(number) == wanted
