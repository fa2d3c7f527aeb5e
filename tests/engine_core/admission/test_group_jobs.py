"""Groups of jobs, as the engine core admits them."""

from array import array

import pytest

from engine_core.messages import (
    Abort,
    GenerateGroup,
    GenerateJob,
    RowOutput,
    SamplingParams,
    Tokenization,
)
from tests.engine_core.fake_transport import Engine
from tests.engine_core.simulated_model import reference

PREFIX = [3, 1, 4, 1, 5, 9]


def ids(*values: int) -> bytes:
    return array("i", values).tobytes()


def member(job: int, *own: int, max_tokens: int = 3, prompt_logprobs: int | None = None):
    params = SamplingParams(max_tokens=max_tokens, prompt_logprobs=prompt_logprobs)
    return GenerateJob(job, params=params, ids=[ids(*own)])


def group(*jobs: GenerateJob, prefix: bytes = ids(*PREFIX)) -> GenerateGroup:
    return GenerateGroup(prefix=prefix, jobs=list(jobs))


@pytest.fixture
def engine(word_tokenizer) -> Engine:
    return Engine(word_tokenizer, "LlamaForCausalLM", num_blocks=24, max_queue_seconds=1e-9)


def run(engine: Engine) -> list[RowOutput]:
    engine.iterate_until(lambda: not (engine.clients._arrivals or engine.core._jobs))
    return [row for outputs in engine.clients.outputs(b"a") for row in outputs.rows]


def text(rows: list[RowOutput], job: int) -> list[int]:
    return [row.token for row in rows if row.job == job and row.token >= 0]


def failures(engine: Engine) -> dict[int, str]:
    outputs = engine.clients.outputs(b"a")
    return {failed.id: failed.message for out in outputs for failed in out.failed}


def test_each_job_of_a_group_has_its_own_answers(engine: Engine) -> None:
    engine.clients.put(b"a", group(member(1, 7), member(2, 8, 9), member(3, 7)))
    rows = run(engine)
    for job, own in ((1, [7]), (2, [8, 9]), (3, [7])):
        assert text(rows, job) == reference(PREFIX + own, 3)
    accepted = [one for out in engine.clients.outputs(b"a") for one in out.accepted]
    assert [(one.id, one.prompt_tokens) for one in accepted] == [(1, [7]), (2, [8]), (3, [7])]
    assert accepted[1].prompt_ids == [ids(*PREFIX, 8, 9)]


def test_one_job_is_aborted_alone(engine: Engine) -> None:
    engine.clients.put(b"a", group(member(1, 7), member(2, 8, max_tokens=60)))
    engine.clients.put(b"a", Abort([2]))
    rows = run(engine)
    assert text(rows, 1) == reference([*PREFIX, 7], 3)
    assert not text(rows, 2)


def test_an_empty_prefix_shares_nothing(engine: Engine) -> None:
    engine.clients.put(b"a", group(member(1, 7), member(2, 8, 9), prefix=b""))
    rows = run(engine)
    assert text(rows, 1) == reference([7], 3)
    assert text(rows, 2) == reference([8, 9], 3)


def test_without_a_prefix_jobs_may_be_any(engine: Engine) -> None:
    params, cut = SamplingParams(max_tokens=3), Tokenization(truncate_to=2, truncation_side="left")
    several = GenerateJob(1, params=params, ids=[ids(7), ids(8, 9)])
    truncated = GenerateJob(2, params=params, ids=[ids(3, 4, 5)], tokenization=cut)
    texts = GenerateJob(3, params=params, texts=["w1 w2"])
    engine.clients.put(b"a", group(several, truncated, texts, prefix=b""))
    rows = run(engine)
    assert not failures(engine)
    tokens = [[row.token for row in rows if (row.job, row.row) == (1, one)] for one in (0, 1)]
    assert tokens == [reference([7], 3), reference([8, 9], 3)]
    assert text(rows, 2) == reference([4, 5], 3)
    assert len(text(rows, 3)) == 3


@pytest.mark.parametrize(
    ("wrong", "numbers"),
    [
        (member(2), ["prefix of 6"]),
        (member(2, 99), ["99", "49"]),
        (member(2, *[1] * 80, max_tokens=30), ["96", "86", "30"]),
        (GenerateJob(2, params=SamplingParams(max_tokens=3), texts=["w1"]), ["texts"]),
        (
            GenerateJob(
                2,
                params=SamplingParams(max_tokens=3),
                ids=[ids(5)],
                tokenization=Tokenization(truncate_to=4),
            ),
            ["truncated"],
        ),
    ],
)
def test_one_job_is_refused_alone(engine: Engine, wrong: GenerateJob, numbers: list[str]) -> None:
    engine.clients.put(b"a", group(member(1, 7), wrong))
    rows = run(engine)
    assert text(rows, 1) == reference([*PREFIX, 7], 3)
    assert list(failures(engine)) == [2]
    assert all(number in failures(engine)[2] for number in numbers)


def test_groups_begin_after_every_priority_and_are_not_refused_for_their_wait(
    word_tokenizer,
) -> None:
    engine = Engine(word_tokenizer, "LlamaForCausalLM", num_blocks=64, max_running=1)
    first = GenerateJob(9, params=SamplingParams(max_tokens=3), ids=[ids(2)])
    engine.clients.put(b"a", first)
    engine.iterate()
    engine.clients.put(b"a", group(member(1, 7), member(2, 8)))
    late = GenerateJob(3, params=SamplingParams(max_tokens=3), ids=[ids(2)], priority=1000)
    engine.clients.put(b"a", late)
    ends = [row.job for row in run(engine) if row.finish is not None]
    assert ends[:2] == [9, 3]
    assert sorted(ends[2:]) == [1, 2]
