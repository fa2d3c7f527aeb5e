import json
import re
import time

import pytest

from engine_core.messages import Failed, Tokenization
from tests.patience import wait_until
from tests.server.conftest import Deployment
from workers.contract.token_sampling import GREEDY, TokenSampling

BOS_AND_HELLO = 5  # the tokens of "<s>" and "Hello"


def events_of(response) -> list[dict]:
    """The chunks of a whole stream, which ends with [DONE]."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def stream(deployment: Deployment, **fields) -> list[dict]:
    response = deployment.post("/v1/completions", {"stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events_of(response)


def complete(deployment: Deployment, **fields) -> dict:
    response = deployment.post("/v1/completions", fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_shape_of_a_completion(deployment, say):
    ids = say(" world")
    body = complete(deployment, model="writer", prompt="Hello")
    assert re.fullmatch(r"cmpl-\w{20,}", body.pop("id"))
    assert abs(body.pop("created") - time.time()) < 5
    assert re.fullmatch(r"fp_[0-9a-f]{10}", body.pop("system_fingerprint"))
    assert body == {
        "object": "text_completion",
        "model": "writer",
        "choices": [{"index": 0, "text": " world", "logprobs": None, "finish_reason": "stop"}],
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
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert len({chunk["system_fingerprint"] for chunk in chunks}) == 1
    assert all(chunk["usage"] is None for chunk in pieces)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == BOS_AND_HELLO
    choices = [chunk["choices"] for chunk in pieces]
    assert all(len(choice) == 1 for choice in choices)
    assert "".join(choice[0]["text"] for choice in choices) == text
    assert [choice[0]["finish_reason"] for choice in choices] == [None] * (len(pieces) - 1) + [
        "stop"
    ]


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


@pytest.mark.parametrize("prompt", ["Hello", ["Hello", "Water falls"], [5, 6, 7], [[5, 6], [7]]])
@pytest.mark.parametrize("n", [1, 3])
def test_every_form_of_prompt(deployment, say, tokenizer, prompt, n):
    say("so")
    body = complete(deployment, prompt=prompt, n=n)
    (job,) = deployment.engines["writer"].received
    count = len(prompt) if isinstance(prompt[0], str) and isinstance(prompt, list) else 1
    count = len(prompt) if isinstance(prompt[0], list) else count
    assert [choice["index"] for choice in body["choices"]] == list(range(count * n))
    assert {choice["text"] for choice in body["choices"]} == {"so"}
    assert job.n == n
    assert len(job.texts) + len(job.ids) == count
    ids = job.ids or tokenizer.encode(job.texts)
    assert body["usage"]["prompt_tokens"] == sum(len(tokens) // 4 for tokens in ids)


def test_what_the_request_says_reaches_the_engine(deployment):
    complete(
        deployment,
        prompt="a",
        max_tokens=3,
        temperature=0.5,
        top_p=0.9,
        top_k=-1,
        seed=-2,
        logprobs=2,
        ignore_eos=True,
        min_p=0.25,
        presence_penalty=-0.5,
        frequency_penalty=1.5,
        repetition_penalty=1.25,
        logit_bias={"7": -100, "40": 2.5},
        cache_salt="tenant 7",
        stop_token_ids=[9, 8, 9],
        min_tokens=2,
        priority=-3,
        add_special_tokens=False,
        truncate_prompt_tokens=5,
        user="somebody",
    )
    (job,) = deployment.engines["writer"].received
    assert (job.cache_salt, job.priority) == ("tenant 7", -3)
    assert job.tokenization == Tokenization(
        add_special_tokens=False, truncate_to=5, truncation_side="left"
    )
    params = job.params
    assert params.sampling == TokenSampling(
        temperature=0.5,
        top_p=0.9,
        top_k=0,
        min_p=0.25,
        presence_penalty=-0.5,
        frequency_penalty=1.5,
        repetition_penalty=1.25,
    )
    assert (params.max_tokens, params.min_tokens, params.seed) == (3, 2, 2**63 - 2)
    assert not params.lowered_to_fit
    assert (params.logprobs, params.prompt_logprobs) == (2, None)
    assert params.ignore_eos
    assert params.logit_bias == {7: -100.0, 40: 2.5}
    assert (params.eos_token_ids, params.stop_token_ids) == ({1}, {8, 9})


def test_top_p_0_is_temperature_0(deployment):
    complete(deployment, prompt="a", top_p=0, temperature=1.5)
    (job,) = deployment.engines["writer"].received
    assert job.params.sampling == GREEDY


def test_what_the_request_leaves_open(deployment):
    nothing = ("max_tokens", "temperature", "n", "stop", "min_p", "presence_penalty")
    nothing += ("frequency_penalty", "repetition_penalty", "logit_bias", "cache_salt", "best_of")
    nothing += ("stop_token_ids", "include_stop_str_in_output", "min_tokens", "timeout", "echo")
    nothing += ("skip_special_tokens", "add_special_tokens", "truncate_prompt_tokens", "priority")
    nothing += ("prompt_logprobs", "return_token_ids")
    for extra in ({}, dict.fromkeys(nothing)):
        complete(deployment, prompt="a", **extra)
    first, second = deployment.engines["writer"].received
    assert first.params == second.params
    assert first.cache_salt == second.cache_salt == ""
    assert (first.params.max_tokens, first.params.lowered_to_fit) == (16, True)
    assert first.params.seed is None
    assert (first.params.eos_token_ids, first.params.stop_token_ids) == ({1}, set())
    assert first.tokenization == second.tokenization
    assert first.tokenization.truncate_to is None
    assert not first.params.ignore_eos
    assert first.params.sampling == TokenSampling()
    assert first.params.logit_bias == {}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_over_several_tokens(deployment, say, streamed):
    ids = say("The quick brown fox jumps over the lazy dog.", end=False)
    deployment.engines["writer"].script.step_seconds = 0.01
    fields = {"prompt": "a", "max_tokens": 200, "stop": ["zebra", "wn fo"], "n": 2}
    if streamed:
        chunks = stream(deployment, **fields)
        texts = ["", ""]
        for chunk in chunks:
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["text"]
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert [reason for reason in reasons if reason] == ["stop", "stop"]
    else:
        body = complete(deployment, **fields)
        texts = [choice["text"] for choice in body["choices"]]
        assert {choice["finish_reason"] for choice in body["choices"]} == {"stop"}
        assert body["usage"]["completion_tokens"] < 2 * len(ids)
    assert texts == ["The quick bro", "The quick bro"]
    engine = deployment.engines["writer"]
    job = engine.received[0].id
    wait_until(lambda: sorted(engine.ended_rows) == [(job, 0), (job, 1)])


def test_held_back_text_is_told_when_the_end_comes(deployment, say):
    say("The quick")
    body = complete(deployment, prompt="a", stop="quick brown")
    assert body["choices"][0]["text"] == "The quick"
    assert body["choices"][0]["finish_reason"] == "stop"


def test_a_row_that_runs_to_its_length(deployment, say):
    ids = say("The quick brown fox", end=False)
    body = complete(deployment, prompt="a", max_tokens=len(ids))
    assert body["choices"][0]["text"] == "The quick brown fox"
    assert body["choices"][0]["finish_reason"] == "length"


def test_echo_repeats_the_prompt_as_it_was_sent(deployment, say):
    say(" then")
    body = complete(deployment, prompt=["Water  falls", "naïve"], echo=True)
    assert [c["text"] for c in body["choices"]] == ["Water  falls then", "naïve then"]


def test_echo_of_token_ids_is_their_text(deployment, say, tokenizer):
    say(" then")
    ids = tokenizer.raw.encode("Water falls").ids
    assert complete(deployment, prompt=ids, echo=True)["choices"][0]["text"] == "Water falls then"


@pytest.mark.parametrize("streamed", [False, True])
def test_logprobs_line_up_with_the_text(deployment, say, streamed):
    text = "größer, then"
    ids = say(text)
    fields = {"prompt": "Hello", "logprobs": 2}
    if streamed:
        pieces = [chunk["choices"][0]["logprobs"] for chunk in stream(deployment, **fields)]
        logprobs = {key: [x for piece in pieces for x in piece[key]] for key in pieces[0]}
    else:
        logprobs = complete(deployment, **fields)["choices"][0]["logprobs"]
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
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["tokens"][0] == "<s>"
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
        response = deployment.post("/v1/completions", {"prompt": "a", "stream": streamed})
        assert response.status_code == 400
        assert response.json()["error"] == {
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
