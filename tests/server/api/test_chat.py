"""Chat over HTTP, before engines that generate scripted tokens."""

import re
import time

import httpx
import pytest

from engine_core.messages import Failed
from tests.patience import wait_until
from tests.server.api.test_completions import ASKED, assert_told
from tests.server.chat_client import HELLO, PATH, chat, choices, chunks_of, error
from tests.server.conftest import Deployment

PROMPT = "<s><|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>[1]"
PROMPT += "<|start_header_id|>assistant<|end_header_id|>\n\n"


@pytest.fixture
def deployment(chats: Deployment) -> Deployment:
    return chats


def test_the_shape_of_an_answer(deployment, say):
    ids = say(" world")
    body = chat(deployment)
    assert re.fullmatch(r"chatcmpl-\w{20,}", body.pop("id"))
    assert abs(body.pop("created") - time.time()) < 5
    assert re.fullmatch(r"fp_[0-9a-f]{10}", body.pop("system_fingerprint"))
    usage = body.pop("usage")
    assert body == {
        "object": "chat.completion",
        "model": "writer",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": " world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "token_ids": None,
            }
        ],
        "prompt_token_ids": None,
        "prompt_logprobs": None,
    }
    assert usage["completion_tokens"] == len(ids) + 1
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_the_prompt_is_the_templates_and_gets_no_second_bos(deployment):
    chat(deployment)
    job = deployment.job("writer")
    assert job.texts == [PROMPT]
    assert not job.tokenization.add_special_tokens
    assert job.params.max_tokens is None
    deployment.engines["writer"].received.clear()
    chat(deployment, add_special_tokens=True)
    assert deployment.job("writer").tokenization.add_special_tokens


def test_the_shape_of_a_stream(deployment, say):
    text = "Water falls from the gate, and naïve cafés too."
    say(text)
    deployment.engines["writer"].script.step_seconds = 0.005
    *chunks, last = chunks_of(deployment, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] > 1
    assert all(chunk["usage"] is None for chunk in chunks)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert choices[0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": "", "refusal": None},
        "logprobs": None,
        "finish_reason": None,
    }
    assert choices[-1] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert all(set(choice["delta"]) == {"content"} for choice in choices[1:-1])
    assert "".join(choice["delta"].get("content", "") for choice in choices) == text
    assert {choice["finish_reason"] for choice in choices[:-1]} == {None}


def test_tokens_spelled_by_their_ids(deployment, say):
    ids = say("naïve cafés")
    fields = {"logprobs": True, "top_logprobs": 2}
    (texts,), (by_ids,) = (
        chat(deployment, **fields, return_tokens_as_token_ids=flag)["choices"]
        for flag in (False, True)
    )
    plain, spelled = (choice["logprobs"]["content"] for choice in (texts, by_ids))
    assert [entry["token"] for entry in spelled] == [f"token_id:{id_}" for id_ in [*ids, 1]]
    assert by_ids["message"] == texts["message"]
    for entry, other in zip(plain, spelled, strict=True):
        assert (entry["logprob"], entry["bytes"]) == (other["logprob"], other["bytes"])
        alternatives = [(top["logprob"], top["bytes"]) for top in entry["top_logprobs"]]
        assert [(top["logprob"], top["bytes"]) for top in other["top_logprobs"]] == alternatives
        assert all(top["token"].startswith("token_id:") for top in other["top_logprobs"])


@pytest.mark.parametrize("streamed", [False, True])
def test_several_answers(deployment, say, streamed):
    say("so")
    found = choices(deployment, n=3, stream=streamed)
    assert [choice["index"] for choice in found] == [0, 1, 2]
    told = [(each["message"]["role"], each["message"]["content"]) for each in found]
    assert told == [("assistant", "so")] * 3
    assert {choice["finish_reason"] for choice in found} == {"stop"}


@pytest.mark.parametrize("streamed", [False, True])
def test_logprobs(deployment, say, tokenizer, streamed):
    text = "größer 漢 then"
    ids = say(text)
    fields = {"logprobs": True, "top_logprobs": 3, "stream": streamed}
    (choice,) = choices(deployment, **fields)
    assert choice["logprobs"]["refusal"] is None
    entries = choice["logprobs"]["content"]
    assert len(entries) == len(ids) + 1  # the end token too
    assert {entry["logprob"] for entry in entries} == {-0.5}
    spelled = b"".join(bytes(entry["bytes"]) for entry in entries[:-1])
    assert spelled.decode() == text
    assert entries[-1]["token"] == "</s>"
    for entry in entries:
        # The fake engine's likeliest are ids 0 and up.
        assert [top["logprob"] for top in entry["top_logprobs"]] == [-1.0, -2.0, -3.0]
        assert [top["token"] for top in entry["top_logprobs"]][:2] == ["<s>", "</s>"]
        assert all(set(top) == {"token", "logprob", "bytes"} for top in entry["top_logprobs"])


@pytest.mark.parametrize("fields", [{}, {"top_logprobs": 0}, {"top_logprobs": None}])
def test_logprobs_of_the_tokens_alone(deployment, say, fields):
    say("fox")
    content = chat(deployment, logprobs=True, **fields)["choices"][0]["logprobs"]["content"]
    assert content
    assert all(entry["top_logprobs"] == [] for entry in content)
    assert deployment.job("writer").params.logprobs == 0


def test_what_the_request_says_reaches_the_engine(deployment):
    chat(deployment, **ASKED, n=2, regex="a+")
    job = deployment.job("writer")
    assert_told(job)
    assert job.n == 2
    assert job.params.grammar is not None
    assert job.params.grammar.kind == "regex"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_max_tokens_under_either_name(deployment, name):
    body = chat(deployment, **{name: 2})
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2
    deployment.engines["writer"].script.refusal = Failed(
        0, "context_length_exceeded", "too many", "max_tokens"
    )
    assert error(deployment, **{name: 2})["param"] == name


def test_a_client_that_leaves_ends_its_job(deployment):
    deployment.engines["writer"].script.held = True
    with pytest.raises(httpx.ReadTimeout):
        deployment.http.post(PATH, json={"model": "writer", "messages": HELLO}, timeout=0.3)
    wait_until(lambda: deployment.engines["writer"].running == 0)
