"""From a job's message to its rows."""

from array import array
from typing import Any

import pytest

from engine_core.loop.jobs import Job
from engine_core.messages import GenerateJob, SamplingParams
from engine_core.refusal import RefusalError
from engine_core.schedulers.request import Request
from engine_core.tokenization.tokenized import Tokenized
from engine_core.workflows.generate import MAX_PROMPT_SCORES, DecoderProcessor
from engine_core.workflows.tokenizer_threads import JobInputs
from tests.engine_core.configs import execution_config

STOPS = {"eos_token_ids": frozenset({1, 70}), "stop_token_ids": frozenset({7})}


def rows_of(
    n: int = 1, priority: int = 0, prompt: tuple[int, ...] = (3, 4), **params: Any
) -> list[Request]:
    """The rows of one prompt; the vocabulary has 50 tokens."""
    message = GenerateJob(1, params=SamplingParams(**STOPS, **params), n=n, priority=priority)
    processor = DecoderProcessor(execution_config(), 64)
    tokenized = Tokenized(array("i", prompt).tobytes())
    _, rows = processor.prepare(JobInputs(Job(b"client", message, n, 0), [tokenized]))
    return list(rows)


@pytest.mark.parametrize(
    ("params", "barred", "stops"),
    [
        ({"min_tokens": 2}, {1, 7}, {1, 7, 70}),
        ({"min_tokens": 2, "ignore_eos": True}, {7}, {7}),
        ({"ignore_eos": True}, set(), {7}),
        ({}, set(), {1, 7, 70}),
    ],
)
def test_what_ends_a_row_and_what_is_barred(params: dict, barred: set, stops: set) -> None:
    (row,) = rows_of(**params)
    assert set(array("i", row.barred)) == barred
    assert row.stops == stops


def test_every_row_has_the_jobs_priority() -> None:
    assert [row.priority for row in rows_of(n=3, priority=-4)] == [-4] * 3


def test_the_first_row_of_a_prompt_scores_it() -> None:
    rows = rows_of(n=3, prompt_logprobs=5)
    assert [row.params.prompt_logprobs for row in rows] == [5, None, None]


def test_a_prompt_may_be_all_that_is_wanted() -> None:
    (row,) = rows_of(max_tokens=0)
    assert row.max_len == row.prompt_len == 2


@pytest.mark.parametrize(("free", "lowered"), [(40, 16), (16, 16), (15, 15), (1, 1)])
def test_a_default_length_is_lowered_to_what_the_prompt_leaves(free: int, lowered: int) -> None:
    prompt = (3,) * (execution_config().max_model_len - free)
    (row,) = rows_of(prompt=prompt, max_tokens=16, lowered_to_fit=True)
    assert row.max_len - row.prompt_len == lowered


def test_a_prompt_that_leaves_nothing_is_refused_by_its_own_name() -> None:
    prompt = (3,) * execution_config().max_model_len
    with pytest.raises(RefusalError) as refused:
        rows_of(prompt=prompt, max_tokens=16, lowered_to_fit=True)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")


def test_a_length_that_was_asked_for_is_not_lowered() -> None:
    prompt = (3,) * (execution_config().max_model_len - 15)
    with pytest.raises(RefusalError) as refused:
        rows_of(prompt=prompt, max_tokens=16)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "max_tokens")


def test_a_job_gets_so_many_log_probabilities_of_its_prompts() -> None:
    """8 tokens x 512 are the bound, for 1,024 prompts; each choice repeats them."""
    config = execution_config()
    processor = DecoderProcessor(config, 64)
    tokenized = [Tokenized(array("i", [3] * 8).tobytes())] * 1024
    assert 8 * 512 * len(tokenized) == MAX_PROMPT_SCORES

    def rows(n: int, width: int | None, batch: bool = False) -> int:
        params = SamplingParams(max_tokens=0, prompt_logprobs=width)
        job = Job(b"client", GenerateJob(1, params=params, n=n, batch=batch), n, 0)
        return len(list(processor.prepare(JobInputs(job, tokenized))[1]))

    assert rows(64, 7) == rows(64, None) == rows(64, 512, batch=True) == 65536
    assert rows(1, 511) == 1024
    for n, width in ((1, 512), (2, 256), (64, 8)):
        said = rf"8192 prompt tokens x \({width} \+ 1\) log-probabilities x {n} choices"
        with pytest.raises(RefusalError, match=said) as refused:
            rows(n, width)
        assert (refused.value.code, refused.value.param) == ("too_large", "prompt")
