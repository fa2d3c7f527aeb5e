"""From a job's message to its rows, and to the messages with which these get slots in workers."""

from array import array
from typing import Any

import msgspec
import numpy as np
import pytest

from engine_core.loop.jobs import Job
from engine_core.messages import GenerateJob, SamplingParams
from engine_core.refusal import RefusalError
from engine_core.schedulers.request import Request
from engine_core.tokenization.tokenized import Tokenized
from engine_core.workflows.generate import MAX_PROMPT_SCORES, DecoderProcessor
from engine_core.workflows.tokenizer_threads import JobInputs
from tests.engine_core.configs import execution_config
from workers.contract.messages import SlotInit
from workers.contract.token_sampling import TokenBias, TokenSampling

STOPS = {"eos_token_ids": frozenset({1, 70}), "stop_token_ids": frozenset({7})}


def rows_of(n: int = 1, prompt: tuple[int, ...] = (3, 4), **params: Any) -> list[Request]:
    """The rows of one prompt; the vocabulary has 50 tokens."""
    message = GenerateJob(1, params=SamplingParams(**STOPS, **params), n=n)
    processor = DecoderProcessor(execution_config(), 64)
    tokenized = Tokenized(array("i", prompt).tobytes())
    rows = processor.prepare(JobInputs(Job(b"client", message, n, 0), [tokenized])).rows
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


def test_the_first_row_scores_their_prompt() -> None:
    rows = rows_of(n=3, prompt_logprobs=5, max_tokens=0)
    assert [row.params.prompt_logprobs for row in rows] == [5, None, None]
    assert [row.max_len - row.prompt_len for row in rows] == [0] * 3


def rows_leaving(free: int, *, lowered: bool) -> list[Request]:
    prompt = (3,) * (execution_config().max_model_len - free)
    return rows_of(prompt=prompt, max_tokens=16, lowered_to_fit=lowered)


@pytest.mark.parametrize(("free", "length"), [(40, 16), (16, 16), (15, 15), (1, 1)])
def test_a_default_length_is_lowered_to_what_the_prompt_leaves(free: int, length: int) -> None:
    (row,) = rows_leaving(free, lowered=True)
    assert row.max_len - row.prompt_len == length


@pytest.mark.parametrize(("free", "param"), [(0, "prompt"), (15, "max_tokens")])
def test_what_does_not_fit_is_refused_by_its_own_name(free: int, param: str) -> None:
    with pytest.raises(RefusalError) as refused:
        rows_leaving(free, lowered=param == "prompt")
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", param)


def test_a_job_gets_so_many_log_probabilities_of_its_prompts() -> None:
    """128 tokens x 512 are the bound, for 64 prompts; each choice repeats them."""
    processor = DecoderProcessor(execution_config(), 64)
    tokenized = [Tokenized(array("i", [3] * 128).tobytes())] * 64
    assert 128 * 512 * len(tokenized) == MAX_PROMPT_SCORES

    def rows(n: int, width: int | None, batch: bool = False) -> int:
        params = SamplingParams(max_tokens=0, prompt_logprobs=width)
        job = Job(b"client", GenerateJob(1, params=params, n=n, batch=batch), n, 0)
        return len(list(processor.prepare(JobInputs(job, tokenized)).rows))

    assert rows(64, 7) == rows(64, None) == rows(64, 512, batch=True) == 4096
    assert rows(1, 511) == 64
    for n, width in ((1, 512), (2, 256), (64, 8)):
        said = rf"8192 prompt tokens x \({width} \+ 1\) log-probabilities x {n} choices"
        with pytest.raises(RefusalError, match=said) as refused:
            rows(n, width)
        assert (refused.value.code, refused.value.param) == ("too_large", "prompt")


def slot_init(params: SamplingParams, barred: bytes = b"") -> SlotInit:
    """The SlotInit of a request with three prompt tokens and two of output, encoded and decoded."""
    wire = msgspec.msgpack.Encoder().encode(GenerateJob(1, params=params))
    message = msgspec.msgpack.decode(wire, type=GenerateJob)
    job = Job(b"client", message, 1, 0)
    prompt = array("i", [5, 6, 5])
    request = Request(job, 0, message.params, prompt, max_len=20, seed=4, barred=barred)
    request.tokens.extend([9, 8])
    request.slot = 3
    return request.slot_init()


def test_known_tokens_are_sent_where_a_penalty_counts_them_and_only_there() -> None:
    unpenalised = TokenSampling(temperature=0.5, top_k=7, top_p=0.75, min_p=0.25)
    plain = slot_init(SamplingParams(sampling=unpenalised))
    assert (plain.sampling, plain.known_tokens, plain.bias) == (unpenalised, b"", TokenBias())
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        sampling = msgspec.structs.replace(TokenSampling(), **{name: 0.5})
        init = slot_init(SamplingParams(sampling=sampling))
        assert np.frombuffer(init.known_tokens, np.int32).tolist() == [5, 6, 5, 9, 8]
        assert (init.slot, init.prompt_len, init.sampling) == (3, 3, sampling)


def test_biases_and_what_must_not_come_early_travel_as_arrays() -> None:
    params = SamplingParams(logit_bias={7: -100.0, 2: 0.5}, min_tokens=4)
    init = slot_init(params, barred=array("i", [3, 1]).tobytes())
    assert np.frombuffer(init.bias.ids, np.int32).tolist() == [7, 2]
    assert np.frombuffer(init.bias.values, np.float32).tolist() == [-100.0, 0.5]
    assert (init.known_tokens, init.barred.min_tokens) == (b"", 4)
    assert np.frombuffer(init.barred.ids, np.int32).tolist() == [3, 1]
