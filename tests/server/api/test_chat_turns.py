"""Chats with tools and reasoning over HTTP, before engines that say scripted turns."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.chat_client import HELLO, chat, choices, chunks_of, say_little
from tests.server.chat_templates import chat_deployment
from tests.server.conftest import Deployment
from tests.server.generation.test_requested_tools import THINKING, WRITES_TOOLS, tool
from tests.server.templates.test_turn_formats import HERMES_CALL, THOUGHTS, template

WRITER = WRITES_TOOLS + template(HERMES_CALL, answer=THOUGHTS, prompt=THINKING)
TOOLS = [tool("get", parameters={"type": "object", "properties": {"a": {"type": "string"}}})]
CALL = '<tool_call>{"name": "get", "arguments": {"a": "x STOP"}}</tool_call>'
ARGUMENTS = '{"a": "x STOP"}'
TURN = f"Hm STOP.</think>\n\nI look.\n{CALL}"
PLAIN = "Hm.</think>\n\nNo."


@pytest.fixture(scope="module")
def open_deployment(tokenizer) -> Iterator[Deployment]:
    with chat_deployment(tokenizer, {"writer": WRITER}) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment) -> Deployment:
    return say_little(open_deployment)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_turn_with_a_call(deployment, say, streamed):
    """A stop string neither ends reasoning nor a call."""
    say(TURN)
    found = choices(deployment, tools=TOOLS, n=2, stop="STOP", stream=streamed)
    assert [choice["index"] for choice in found] == [0, 1]
    ids: set[str] = set()
    for choice in found:
        message = choice["message"]
        assert message["content"] == "I look."
        assert message["reasoning_content"] == message["reasoning"] == "Hm STOP."
        first, *others = message["tool_calls"]
        arguments = first["function"]["arguments"]
        arguments += "".join(call["function"]["arguments"] for call in others)
        assert (first["function"]["name"], arguments) == ("get", ARGUMENTS)
        assert choice["finish_reason"] == "tool_calls"
        ids.add(first["id"])
    assert len(ids) == 2


def test_the_tokens_of_tools_are_those_of_the_chats_prompt(deployment, say, tokenizer):
    say(PLAIN)
    chat(deployment, tools=TOOLS)
    (text,) = deployment.job("writer").texts
    asked = {"model": "writer", "messages": HELLO, "tools": TOOLS}
    tokens = deployment.ask("/tokenize", **asked)["tokens"]
    assert tokens == tokenizer.raw.encode(text, add_special_tokens=False).ids
    assert tokens != deployment.ask("/tokenize", **{**asked, "tools": []})["tokens"]
    for fields, field in (
        ({"tools": [*TOOLS, *TOOLS]}, "tools[1].function.name"),
        ({"messages": None, "prompt": "x"}, "tools"),
    ):
        refused = deployment.http.post("/tokenize", json=asked | fields)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


def test_the_tokens_of_reasoning_are_counted(deployment, say, tokenizer):
    say(PLAIN)
    reasoned = len(tokenizer.raw.encode("Hm.</think>", add_special_tokens=False).ids)
    usage = chat(deployment, n=2)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * reasoned}
    last = chunks_of(deployment, stream_options={"include_usage": True})[-1]
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": reasoned}
    assert chat(deployment)["choices"][0]["message"]["content"] == "No."


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("behind", "begun"), [('"arguments": {"a', True), ('{"name"', False)])
def test_a_call_that_max_tokens_cuts(deployment, say, tokenizer, behind, begun, streamed):
    say(TURN)
    text = TURN.partition(behind)[0] + behind
    most = len(tokenizer.raw.encode(text, add_special_tokens=False).ids)
    (choice,) = choices(deployment, tools=TOOLS, max_tokens=most, stream=streamed)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == "I look."
    assert ("tool_calls" in choice["message"]) == (begun and streamed)


@pytest.mark.parametrize("streamed", [False, True])
def test_functions_get_a_function_call(deployment, say, streamed):
    say(TURN)
    functions = [TOOLS[0]["function"]]
    (choice,) = choices(deployment, functions=functions, stream=streamed)
    assert choice["message"]["function_call"] == {"name": "get", "arguments": ARGUMENTS}
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"


@pytest.mark.parametrize(("choice", "calls"), [("none", False), ("auto", True)])
def test_calls_are_text_where_none_may_come(deployment, say, choice, calls):
    say(TURN)
    message = chat(deployment, tools=TOOLS, tool_choice=choice)["choices"][0]["message"]
    assert ("tool_calls" in message) == calls
    assert ("<tool_call>" in message["content"]) == (not calls)


def cohere(deployment: Deployment, messages: list[Any], **fields: Any) -> dict[str, Any]:
    return deployment.ask("/v2/chat", model="writer", messages=messages, **fields)


def test_a_loop_in_cohere_s_words(deployment, say):
    """An answer goes back as it came, with results as documents."""
    say(TURN)
    answer = cohere(deployment, HELLO, tools=TOOLS)
    assert answer["finish_reason"] == "TOOL_CALL"
    thinking, text = answer["message"]["content"]
    assert (thinking["thinking"], text["text"]) == ("Hm STOP.", "I look.")
    (call,) = answer["message"]["tool_calls"]
    assert call["function"] == {"name": "get", "arguments": ARGUMENTS}
    part = {"type": "document", "document": {"data": json.dumps({"found": 7})}}
    result = {"role": "tool", "tool_call_id": call["id"], "content": [part]}
    say(PLAIN)
    deployment.engines["writer"].received.clear()
    answer = cohere(deployment, [*HELLO, answer["message"], result], tools=TOOLS)
    assert answer["finish_reason"] == "COMPLETE"
    (prompt,) = deployment.job("writer").texts
    assert "I look." in prompt
    assert '<|tool|>{"found": 7}<|end|>' in prompt
    assert '{"name": "get", "arguments": {"a": "x STOP"}}' in prompt


@pytest.mark.parametrize(
    ("fields", "calls", "strict"),
    [
        ({}, "auto", False),
        ({"tool_choice": "REQUIRED"}, "required", False),
        ({"tool_choice": "NONE"}, "none", False),
        ({"strict_tools": True}, "auto", True),
    ],
)
def test_what_the_engine_is_told_of_coheres_tools(deployment, say, fields, calls, strict):
    say(PLAIN)
    cohere(deployment, HELLO, tools=TOOLS, **fields)
    rules = deployment.job("writer").params.turn
    assert (rules.calls, [rule.strict for rule in rules.tools]) == (calls, [strict])
