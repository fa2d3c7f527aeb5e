"""`/v2/chat`: Cohere's shapes and events, and what the engine is asked for."""

import json
import re
from typing import Any

import pytest

from tests.server.chat_client import HELLO
from tests.server.conftest import Deployment

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture
def deployment(chats: Deployment) -> Deployment:
    return chats


def chat(deployment: Deployment, **fields: Any) -> dict[str, Any]:
    return deployment.ask("/v2/chat", **{"model": "writer", "messages": HELLO} | fields)


def events_of(deployment: Deployment, **fields: Any) -> list[dict[str, Any]]:
    """Those of a stream, each of which has its type as its name too."""
    body = {"model": "writer", "messages": HELLO, "stream": True}
    response = deployment.post("/v2/chat", body | fields)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *lines, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    events = []
    for text in lines:
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_the_shape_of_an_answer(deployment, say) -> None:
    ids = say(" world")
    body = chat(deployment)
    assert re.fullmatch(r"chat-\w{20,}", body.pop("id"))
    usage = body.pop("usage")
    assert body == {
        "finish_reason": "COMPLETE",
        "message": {"role": "assistant", "content": [{"type": "text", "text": " world"}]},
    }
    tokens = {"input_tokens": usage["tokens"]["input_tokens"], "output_tokens": len(ids) + 1}
    assert usage == {"tokens": tokens, "billed_units": tokens, "cached_tokens": 0}
    assert tokens["input_tokens"] > 0


def test_the_events_of_a_stream(deployment, say) -> None:
    say("a long way home")
    whole = chat(deployment)
    start, begin, *deltas, end, last = events_of(deployment)
    message = {"role": "assistant", "content": []}
    assert start == {"type": "message-start", "id": start["id"], "delta": {"message": message}}
    content = {"type": "text", "text": ""}
    assert begin == {
        "type": "content-start", "index": 0, "delta": {"message": {"content": content}},
    }  # fmt: skip
    assert {(event["type"], event["index"]) for event in deltas} == {("content-delta", 0)}
    text = "".join(event["delta"]["message"]["content"]["text"] for event in deltas)
    assert [{"type": "text", "text": text}] == whole["message"]["content"]
    assert end == {"type": "content-end", "index": 0}
    delta = {"finish_reason": "COMPLETE", "usage": whole["usage"]}
    assert last == {"type": "message-end", "id": start["id"], "delta": delta}


@pytest.mark.parametrize(
    ("fields", "text", "reason"),
    [
        ({}, "one two three", "COMPLETE"),
        ({"max_tokens": 2}, None, "MAX_TOKENS"),
        ({"stop_sequences": [" two"]}, "one", "STOP_SEQUENCE"),
        ({"stop_sequences": ["four"]}, "one two three", "COMPLETE"),
    ],
)
def test_how_an_answer_ends(deployment, say, fields, text, reason) -> None:
    say("one two three")
    body, last = chat(deployment, **fields), events_of(deployment, **fields)[-1]
    assert body["finish_reason"] == last["delta"]["finish_reason"] == reason
    assert text in (None, body["message"]["content"][0]["text"])


def test_logprobs(deployment, say) -> None:
    ids = [*say(" world"), 1]
    items = chat(deployment, logprobs=True)["logprobs"]
    assert [item["token_ids"] for item in items] == [[token] for token in ids]
    assert "".join(item["text"] for item in items[:-1]) == " world"
    assert all(len(item["logprobs"]) == 1 and item["logprobs"][0] <= 0 for item in items)
    deltas = [event for event in events_of(deployment, logprobs=True) if "logprobs" in event]
    assert [token for event in deltas for token in event["logprobs"]["token_ids"]] == ids
    streamed = [value for event in deltas for value in event["logprobs"]["logprobs"]]
    assert streamed == [value for item in items for value in item["logprobs"]]


def test_the_engine_is_told_what_was_asked(deployment) -> None:
    chat(
        deployment, max_tokens=7, temperature=0.5, seed=3, k=4, p=0.6, frequency_penalty=0.1,
        presence_penalty=0.2, priority=-1, citation_options={"mode": "OFF"},
        response_format={"type": "json_object", "json_schema": SCHEMA},
    )  # fmt: skip
    job = deployment.job("writer")
    params = job.params
    assert (params.max_tokens, params.lowered_to_fit, params.seed) == (7, True, 3)
    sampling = params.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 4, 0.6)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.1, 0.2)
    assert params.grammar is not None
    assert json.loads(params.grammar.source) == SCHEMA
    assert job.priority == -1


def test_a_conversation_of_every_role(deployment) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    roles = ["system", "developer", "user", "assistant", "user"]
    chat(deployment, messages=[{"role": role, "content": parts} for role in roles])
    (text,) = deployment.job("writer").texts
    assert text.count("a\nb") == len(roles)
