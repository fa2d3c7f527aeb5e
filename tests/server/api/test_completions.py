import json
import re
import time
from array import array
from typing import Any

import openai
import pytest

from engine_core.messages import Failed, GenerateJob, Tokenization
from tests.patience import wait_until
from tests.server.conftest import Deployment, events_in
from workers.contract.token_sampling import GREEDY, TokenSampling

BOS_AND_HELLO = 5  # the tokens of "<s>" and "Hello"


def stream(deployment: Deployment, **fields) -> list[dict]:
    response = deployment.post("/v1/completions", {"stream": True, **fields})
    assert response.status_code == 200, response.text
    return events_in(response)


def complete(deployment: Deployment, **fields) -> dict:
    return deployment.ask("/v1/completions", **fields)


def test_the_shape_of_a_completion(deployment, say):
    ids = say(" world")
    body = complete(deployment, model="writer", prompt="Hello")
    assert re.fullmatch(r"cmpl-\w{20,}", body.pop("id"))
    assert abs(body.pop("created") - time.time()) < 5
    assert re.fullmatch(r"fp_[0-9a-f]{10}", body.pop("system_fingerprint"))
    assert body == {
        "object": "text_completion",
        "model": "writer",
        "choices": [
            {
                "index": 0,
                "text": " world",
                "logprobs": None,
                "finish_reason": "stop",
                "token_ids": None,
                "prompt_token_ids": None,
                "prompt_logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": BOS_AND_HELLO,
            "completion_tokens": len(ids) + 1,
            "total_tokens": BOS_AND_HELLO + len(ids) + 1,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_the_shape_of_a_stream(deployment, say):
    text = "Water falls from the gate into the turbine below, and naïve cafés too."
    say(text)
    deployment.engines["writer"].script.step_seconds = 0.01
    chunks = stream(
        deployment, prompt="Hello", max_tokens=100, stream_options={"include_usage": True}
    )
    *pieces, last = chunks
    assert len(pieces) > 2
    names = ("id", "object", "system_fingerprint")
    (alike,) = {tuple(chunk[name] for name in names) for chunk in chunks}
    assert alike[1] == "text_completion"
    assert all(chunk["usage"] is None for chunk in pieces)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == BOS_AND_HELLO
    choices = [choice for chunk in pieces for (choice,) in [chunk["choices"]]]
    assert "".join(choice["text"] for choice in choices) == text
    ends = [choice["finish_reason"] for choice in choices]
    assert ends == [None] * (len(pieces) - 1) + ["stop"]


@pytest.mark.parametrize("at_end", [False, True])
def test_usage_so_far_in_every_chunk_of_a_stream(deployment, say, at_end):
    ids = say("Water falls from the gate.")
    deployment.engines["writer"].script.step_seconds = 0.01
    options = {"continuous_usage_stats": True, "include_usage": at_end}
    chunks = stream(deployment, prompt="Hello", n=2, max_tokens=100, stream_options=options)
    used = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert used == sorted(used)
    assert 0 < used[0] < used[-1] == 2 * (len(ids) + 1)
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {BOS_AND_HELLO}
    assert [not chunk["choices"] for chunk in chunks] == [False] * (len(chunks) - 1) + [at_end]


def test_usage_is_absent_from_a_stream_that_did_not_ask(deployment, say):
    say("a b")
    assert all("usage" not in chunk for chunk in stream(deployment, prompt="Hello"))


@pytest.mark.parametrize(
    "prompt",
    [
        *("Hello", ["Hello", "Water falls"], [5, 6, 7], [[5, 6], [7]]),
        *({"prompt": "Hello"}, {"prompt_token_ids": [5, 6, 7], "prompt": None}),
        *([{"prompt": "Hello"}, "Water falls"], [[5, 6], {"prompt_token_ids": [7]}]),
        [{"prompt": "Hello", "cache_salt": None, "unknown": 1}],
    ],
)
@pytest.mark.parametrize("n", [1, 3])
def test_every_form_of_prompt(deployment, say, tokenizer, prompt, n):
    say("so")
    body = complete(deployment, prompt=prompt, n=n)
    job = deployment.job("writer")
    count = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert [choice["index"] for choice in body["choices"]] == list(range(count * n))
    assert {choice["text"] for choice in body["choices"]} == {"so"}
    assert job.n == n
    assert len(job.texts) + len(job.ids) == count
    assert job.texts in ([], ["Hello"], ["Hello", "Water falls"])
    assert b"".join(job.ids) in (b"", array("i", [5, 6, 7]).tobytes())
    ids = job.ids or tokenizer.encode(job.texts)
    assert body["usage"]["prompt_tokens"] == sum(len(tokens) // 4 for tokens in ids)


SAMPLING = {
    "temperature": 0.5, "top_p": 0.9, "min_p": 0.25, "presence_penalty": -0.5,
    "frequency_penalty": 1.5, "repetition_penalty": 1.25,
}  # fmt: skip
ASKED: dict[str, Any] = SAMPLING | {
    "max_tokens": 3, "min_tokens": 2, "seed": -2, "top_k": -1, "ignore_eos": True,
    "logit_bias": {"7": -100, "40": 2.5}, "stop_token_ids": [9, 8, 9], "cache_salt": "tenant 7",
    "priority": -3, "truncate_prompt_tokens": 5, "user": "somebody",
}  # fmt: skip
"""Options of completions and of chat."""


def assert_told(job: GenerateJob) -> None:
    """The engine is told what is ASKED."""
    assert (job.cache_salt, job.priority) == ("tenant 7", -3)
    assert job.tokenization == Tokenization(
        add_special_tokens=False, truncate_to=5, truncation_side="left"
    )
    params = job.params
    assert params.sampling == TokenSampling(**SAMPLING, top_k=0)
    assert (params.max_tokens, params.min_tokens, params.seed) == (3, 2, 2**63 - 2)
    assert (params.lowered_to_fit, params.ignore_eos) == (False, True)
    assert params.logit_bias == {7: -100.0, 40: 2.5}
    assert (params.eos_token_ids, params.stop_token_ids) == ({1}, {8, 9})


def test_what_the_request_says_reaches_the_engine(deployment):
    complete(deployment, prompt="a", **ASKED, logprobs=2, add_special_tokens=False)
    job = deployment.job("writer")
    assert_told(job)
    assert (job.params.logprobs, job.params.prompt_logprobs) == (2, None)


def test_top_p_0_is_temperature_0(deployment):
    complete(deployment, prompt="a", top_p=0, temperature=1.5)
    job = deployment.job("writer")
    assert job.params.sampling == GREEDY


def test_what_the_request_leaves_open(deployment):
    complete(deployment, prompt="a")
    job = deployment.job("writer")
    params = job.params
    assert (job.cache_salt, job.tokenization.truncate_to) == ("", None)
    assert (params.sampling, params.seed, params.logit_bias) == (TokenSampling(), None, {})
    assert (params.max_tokens, params.lowered_to_fit, params.ignore_eos) == (16, True, False)
    assert (params.eos_token_ids, params.stop_token_ids) == ({1}, set())


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_over_several_tokens(deployment, say, streamed, included):
    say("The quick brown fox jumps over the lazy dog.", end=False)
    deployment.engines["writer"].script.step_seconds = 0.01
    fields = {"prompt": "a", "max_tokens": 200, "stop": ["zebra", "wn fo"], "n": 2}
    fields |= {"include_stop_str_in_output": included, "stream": streamed}
    choices = deployment.choices("/v1/completions", **fields)
    text = "The quick brown fo" if included else "The quick bro"
    assert [choice["text"] for choice in choices] == [text] * 2
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    engine = deployment.engines["writer"]
    job = engine.received[0].id
    wait_until(lambda: sorted(engine.ended_rows) == [(job, 0), (job, 1)])


def test_echo_repeats_the_prompt_as_it_was_sent(deployment, say):
    say(" then")
    body = complete(deployment, prompt=["Water  falls", "naïve"], echo=True)
    assert [c["text"] for c in body["choices"]] == ["Water  falls then", "naïve then"]


@pytest.mark.parametrize("streamed", [False, True])
def test_logprobs_line_up_with_the_text(deployment, say, streamed):
    text = "größer, then"
    ids = say(text)
    fields = {"prompt": "Hello", "logprobs": 2, "stream": streamed}
    (choice,) = deployment.choices("/v1/completions", **fields)
    logprobs = choice["logprobs"]
    count = len(ids) + 1  # the stop token too
    assert {len(values) for values in logprobs.values()} == {count}
    assert logprobs["token_logprobs"] == [-0.5] * count
    assert logprobs["tokens"][-1] == "</s>"
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        if not token.startswith(("bytes:", "</s>")):
            assert text[offset:].startswith(token)
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert {"<s>", "</s>", token} == set(top)


def test_logprobs_of_an_echoed_prompt(deployment, say):
    say(" fox")
    body = complete(deployment, prompt="The quick", echo=True, logprobs=1, max_tokens=1)
    logprobs = body["choices"][0]["logprobs"]
    names = ("tokens", "token_logprobs", "top_logprobs")
    assert [logprobs[name][0] for name in names] == ["<s>", None, None]
    assert set(logprobs["token_logprobs"][1:]) == {-0.5}
    count = body["usage"]["prompt_tokens"] + 1
    assert {len(values) for values in logprobs.values()} == {count}
    text = body["choices"][0]["text"]
    for offset, token in list(zip(logprobs["text_offset"], logprobs["tokens"], strict=True))[1:]:
        assert text[offset:].startswith(token)


def test_zero_alternatives_still_tell_the_chosen_token(deployment, say):
    say("fox")
    logprobs = complete(deployment, prompt="a", logprobs=0, max_tokens=1)["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{logprobs["tokens"][0]: -0.5}]


def test_an_engine_that_refuses_is_heard_before_the_status(deployment):
    deployment.engines["writer"].script.refusal = Failed(
        0, "context_length_exceeded", "2048 tokens fit; prompt has 3000", "prompt"
    )
    for streamed in (False, True):
        assert deployment.refusal("/v1/completions", prompt="a", stream=streamed) == {
            "message": "2048 tokens fit; prompt has 3000",
            "type": "invalid_request_error",
            "param": "prompt",
            "code": "context_length_exceeded",
        }


def test_a_row_that_fails_on_the_way(deployment, say):
    say("The quick brown fox")
    deployment.engines["writer"].script.fail_after = 2
    deployment.engines["writer"].script.step_seconds = 0.01
    response = deployment.post("/v1/completions", {"prompt": "a"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "row_failed"
    response = deployment.post("/v1/completions", {"prompt": "a", "stream": True})
    assert response.status_code == 200
    *pieces, last = [line for line in response.text.split("\n\n") if line]
    assert json.loads(pieces[0].removeprefix("data: "))["choices"]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "row_failed"
    url = f"{deployment.api.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = client.completions.create(model="writer", prompt="a", stream=True)
        with pytest.raises(openai.APIError, match="no finite result"):
            list(stream)
