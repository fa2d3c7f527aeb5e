"""`/v1/messages`: Anthropic's shapes and events, and what the engine is asked for."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine_core.messages import Failed
from tests.server.chat_client import HELLO, say_little
from tests.server.chat_templates import LLAMA3, chat_deployment
from tests.server.conftest import Deployment
from tests.server.generation.test_requested_tools import THINKING, WRITES_TOOLS
from tests.server.templates.test_turn_formats import HERMES_CALL, THOUGHTS, template

PATH = "/v1/messages"
NAMES = [(0, "get"), (1, "put")]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"name": "get", "input_schema": SCHEMA}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
CALL = '<tool_call>{"name": "get", "arguments": {"a": "x STOP"}}</tool_call>'
TURN = f"Hm STOP.</think>\n\nI look.\n{CALL}"
PLAIN = "Hm.</think>\n\nNo."
# As DeepSeek-R1's: earlier reasoning is cut off, and not taken in a field of its own.
FORGETFUL = WRITES_TOOLS + template(
    HERMES_CALL, answer="{{ (m.content or '').split('</think>')[-1] }}", prompt=THINKING
)
TEMPLATES = {
    "writer": WRITES_TOOLS + template(HERMES_CALL, answer=THOUGHTS, prompt=THINKING),
    "plain": LLAMA3,
    "forgetful": FORGETFUL,
}


@pytest.fixture(scope="module")
def open_deployment(tokenizer) -> Iterator[Deployment]:
    with chat_deployment(tokenizer, TEMPLATES) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment) -> Deployment:
    return say_little(open_deployment)


def body_of(**fields: Any) -> dict[str, Any]:
    return {"model": "writer", "max_tokens": 200, "messages": HELLO} | fields


def post(deployment: Deployment, **fields: Any) -> httpx.Response:
    return deployment.post(PATH, body_of(**fields))


def ask(deployment: Deployment, **fields: Any) -> dict[str, Any]:
    return deployment.ask(PATH, **body_of(**fields))


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """Those of a stream, each of which has its type as its name too."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *lines, rest = response.text.split("\n\n")
    assert rest == ""
    events = []
    for text in lines:
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that a stream adds up to, as Anthropic's SDKs put it together."""
    start, ping, *others, stop = events
    assert (start["type"], ping, stop) == (
        "message_start", {"type": "ping"}, {"type": "message_stop"},
    )  # fmt: skip
    message, inputs = start["message"], {}
    assert (message["content"], message["stop_reason"]) == ([], None)
    is_open = False
    for event in others:
        index, delta = event.get("index"), event.get("delta", {})
        if event["type"] == "content_block_start":
            assert (is_open, index) == (False, len(message["content"]))
            is_open = True
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            assert (is_open, index) == (True, len(message["content"]) - 1)
            kind = delta.pop("type")
            if kind == "input_json_delta":
                inputs[index] = inputs.get(index, "") + delta["partial_json"]
            else:
                ((name, text),) = delta.items()
                message["content"][index][name] += text
        elif event["type"] == "content_block_stop":
            is_open = False
        else:
            assert event["type"] == "message_delta"
            message |= delta | {"usage": event["usage"]}
    assert not is_open
    for index, text in inputs.items():
        message["content"][index]["input"] = json.loads(text)
    return message


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def answered(request, deployment):
    """Call it with a request's fields: the answer, or what a stream adds up to."""

    def answer(**fields: Any) -> dict[str, Any]:
        response = post(deployment, stream=request.param, **fields)
        assert response.status_code == 200, response.text
        return joined(events_of(response)) if request.param else response.json()

    return answer


def refused(deployment: Deployment, **fields: Any) -> tuple[str, str]:
    """The type and the field of a 400."""
    response = post(deployment, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["type"], error["details"]["param"]


def test_the_shape_of_an_answer(answered, say) -> None:
    ids = say(PLAIN)
    body = answered()
    assert re.fullmatch(r"msg_\w{20,}", body.pop("id"))
    usage = body.pop("usage")
    thinking, text = body.pop("content")
    assert body == {
        "type": "message", "role": "assistant", "model": "writer", "stop_reason": "end_turn",
        "stop_sequence": None,
    }  # fmt: skip
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Hm.")
    assert text == {"type": "text", "text": "No."}
    assert 0 < usage.pop("output_tokens_details")["thinking_tokens"] < len(ids)
    assert usage.pop("input_tokens") > 0
    assert usage == {
        "output_tokens": len(ids) + 1, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }  # fmt: skip


def test_a_turn_with_a_call(answered, say) -> None:
    say(TURN)
    body = answered(tools=[TOOL], stop_sequences=["STOP"])
    thinking, text, call = body["content"]
    assert (thinking["thinking"], text["text"]) == ("Hm STOP.", "I look.")
    assert body["stop_reason"] == "tool_use"
    assert call == {
        "type": "tool_use", "id": call["id"], "name": "get", "input": {"a": "x STOP"},
    }  # fmt: skip


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_an_answer_goes_back_as_it_came(answered, deployment, say, display) -> None:
    """Its reasoning too, even if it was not shown."""
    say(TURN)
    thinking = {"type": "adaptive", "display": display}
    content = answered(tools=[TOOL], thinking=thinking)["content"]
    assert content[0]["thinking"] == ("" if display == "omitted" else "Hm STOP.")
    result = {"type": "tool_result", "tool_use_id": content[2]["id"], "content": "7 found"}
    turns = [
        *HELLO, {"role": "assistant", "content": content},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]  # fmt: skip
    for block, ignored in (
        (content[0], None),
        ({"type": "redacted_thinking", "data": content[0]["signature"]}, None),
        ({**content[0], "signature": "AAAA"}, "messages[1].content[0]"),
    ):
        if block["type"] == "redacted_thinking" and display != "omitted":
            continue
        turns[1] = {"role": "assistant", "content": [block, *content[1:]]}
        deployment.engines["writer"].received.clear()
        response = post(deployment, messages=turns, tools=[TOOL])
        assert response.headers.get("x-penstock-ignored") == ignored
        (prompt,) = deployment.job("writer").texts
        assert ("Hm STOP." in prompt) == (ignored is None)
        assert "I look." in prompt
        assert "<|tool|>7 found<|end|>" in prompt
        assert '{"name": "get", "arguments": {"a": "x STOP"}}' in prompt
        assert prompt.index("7 found") < prompt.index("And?")


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"max_tokens": 2}, "max_tokens", None),
        ({"stop_sequences": ["STOP", " two"]}, "stop_sequence", " two"),
        ({"stop_sequences": ["four"]}, "end_turn", None),
    ],
)
def test_how_an_answer_ends(answered, say, fields, reason, sequence) -> None:
    say("</think>one two three")
    body = answered(**fields)
    assert (body["stop_reason"], body["stop_sequence"]) == (reason, sequence)


def test_no_tokens_are_asked_for_to_warm_the_cache(answered, deployment) -> None:
    deployment.reset(tokens=[])
    body = answered(max_tokens=0)
    assert deployment.job("writer").params.max_tokens == 0
    assert (body["content"], body["stop_reason"]) == ([], "max_tokens")


def test_the_engine_is_told_what_was_asked(deployment) -> None:
    ask(
        deployment, max_tokens=7, temperature=0.5, top_k=4, top_p=0.6, priority=-1,
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}}, service_tier="auto",
        metadata={"user_id": "me"}, cache_control={"type": "ephemeral"}, model="plain",
    )  # fmt: skip
    job = deployment.job("plain")
    params = job.params
    assert (params.max_tokens, params.lowered_to_fit, job.priority) == (7, True, -1)
    assert (params.sampling.temperature, params.sampling.top_k) == (0.5, 4)
    assert params.sampling.top_p == 0.6
    assert json.loads(params.grammar.source) == SCHEMA


@pytest.mark.parametrize(
    ("choice", "calls", "parallel"),
    [
        (None, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "get"}, "required", False),
        ({"type": "none"}, "none", True),
    ],
)
def test_what_the_engine_is_told_of_tools(deployment, say, choice, calls, parallel) -> None:
    say(PLAIN)
    tools = [{**TOOL, "strict": True}, {**TOOL, "name": "put", "type": "custom"}]
    ask(deployment, tools=tools, tool_choice=choice)
    rules = deployment.job("writer").params.turn
    assert (rules.calls, rules.parallel) == (calls, parallel)
    called = [(rule.name, rule.strict, rule.param) for rule in rules.tools]
    both = [(name, name == "get", f"tools[{n}].function.parameters") for n, name in NAMES]
    assert called == (both[:1] if choice == {"type": "tool", "name": "get"} else both)


@pytest.mark.parametrize(
    ("thinking", "open_at_end", "budget"),
    [
        (None, True, None),
        ({"type": "adaptive"}, True, None),
        ({"type": "enabled", "budget_tokens": 5}, True, 5),
        ({"type": "disabled"}, False, None),
    ],
)
def test_thinking_is_the_templates_variable_and_a_budget(
    deployment, say, thinking, open_at_end, budget
) -> None:
    say(PLAIN)
    ask(deployment, thinking=thinking)
    job = deployment.job("writer")
    assert job.texts[0].endswith("<think>\n") == open_at_end
    assert (job.params.turn and job.params.turn.reasoning_budget) == budget


def test_a_budget_is_nothing_to_a_model_that_does_not_reason(deployment) -> None:
    ask(deployment, model="plain", thinking={"type": "enabled", "budget_tokens": 1024})
    assert deployment.job("plain").params.turn is None


@pytest.mark.parametrize(
    "system",
    [
        "Be brief.",
        [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=0a1;"},
            {"type": "text", "text": "Be brief."},
        ],
    ],
)
def test_the_prompt_begins_with_what_the_system_says(deployment, system) -> None:
    ask(deployment, system="Be brief.")
    (plain,) = deployment.job("writer").texts
    deployment.engines["writer"].received.clear()
    ask(deployment, system=system)
    assert deployment.job("writer").texts == [plain]
    assert plain.index("Be brief.") < plain.index("Hello")


def test_neighbours_of_one_role_are_one_turn(deployment) -> None:
    ask(deployment, messages=[*HELLO, {"role": "user", "content": "You?"}])
    (two,) = deployment.job("writer").texts
    deployment.engines["writer"].received.clear()
    parts = [{"type": "text", "text": text} for text in ("Hello", "You?")]
    ask(deployment, messages=[{"role": "user", "content": parts}])
    assert deployment.job("writer").texts == [two]


def test_a_last_message_of_an_assistant_is_continued(deployment) -> None:
    ask(deployment, model="plain", messages=[*HELLO, {"role": "assistant", "content": "I am a"}])
    assert deployment.job("plain").texts[0].endswith("I am a")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": []}, "messages"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "a",
             "signature": "b"}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [*HELLO, {"role": "user", "content": [
                {"type": "text", "text": "a"}, {"type": "tool_result", "tool_use_id": "c"}]}]},
            "messages[1].content[1].tool_use_id",
        ),
        ({"messages": [*HELLO, {"role": "assistant", "content": ""}]}, "messages"),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c", "name": "get", "input": {}}]}]},
            "messages[1]",
        ),
        ({"tools": [SEARCH]}, "tools[0].type"),
        (
            {"tools": [TOOL, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}},
            "tools[1].type",
        ),
        ({"tools": [SEARCH, TOOL, TOOL]}, "tools[2].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "a"}}, "tool_choice.name"),
        ({"tools": [SEARCH, {"name": "a", "input_schema": {"type": "array"}}]},
         "tools[1].input_schema.type"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a", "input_schema": None}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"output_config": {"format": {"type": "json_schema", "schema": 1}}},
         "output_config.format.schema"),
        ({"output_config": {"format": {"schema": SCHEMA}}}, "output_config.format.type"),
        ({"container": "c"}, "container"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(deployment, fields, field) -> None:
    assert refused(deployment, **fields) == ("invalid_request_error", field)


def test_tools_without_a_schema_are_left_out_beside_others(deployment, say) -> None:
    say(PLAIN)
    response = post(deployment, tools=[SEARCH, TOOL])
    assert response.headers["x-penstock-ignored"] == "tools[0]"
    assert "web_search" not in deployment.job("writer").texts[0]


def test_the_shape_of_an_error(deployment) -> None:
    response = post(deployment, thread={"type": "create"})
    body = response.json()
    assert response.status_code == 400
    assert body == {
        "type": "error", "request_id": response.headers["x-request-id"],
        "error": {
            "type": "invalid_request_error", "message": body["error"]["message"],
            "details": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "status", "kind"),
    [
        (PATH, 404, "not_found_error"),
        (f"{PATH}/count_tokens", 404, "not_found_error"),
        ("/v1/chat/completions", 404, "not_found_error"),
        ("/v1/nothing", 404, "not_found_error"),
    ],
)
def test_who_names_the_version_gets_this_shape_everywhere(deployment, path, status, kind) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    response = deployment.http.post(path, json=body_of(model="nobody"), headers=headers)
    body = response.json()
    assert (response.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("prompt", "messages"),
        ("messages[1].role", "messages[1]"),
        ("messages[1].content", "messages[1].content[0]"),
        ("messages[1].tool_calls", "messages[1].content[1]"),
        ("messages[1].tool_calls[1]", "messages[1].content[2]"),
        ("messages[1].tool_calls[0].function.arguments", "messages[1].content[1].input"),
        ("messages[2].role", "messages[2].content[0]"),
        ("messages[2].tool_call_id", "messages[2].content[0].tool_use_id"),
        ("messages[3]", "messages[2]"),
        ("tools[0].function.parameters.properties", "tools[1].input_schema.properties"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_named(deployment, said, field, stream) -> None:
    refusal = Failed(0, "context_length_exceeded", f"{said} has 9 tokens", said)
    deployment.engines["writer"].script.refusal = refusal
    call = {"type": "tool_use", "id": "c", "name": "get", "input": {}}
    said_first = {"type": "text", "text": "I look."}
    messages = [
        *HELLO, {"role": "assistant", "content": [said_first, call, call | {"id": "d"}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c"}, {"type": "text", "text": "And?"}]},
    ]  # fmt: skip
    fields = {"messages": messages, "tools": [SEARCH, TOOL], "stream": stream}
    assert refused(deployment, **fields) == ("invalid_request_error", field)


def test_what_the_template_leaves_out_is_named(deployment) -> None:
    call = {"type": "tool_use", "id": "c", "name": "get", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c"}
    answer = [{"type": "text", "text": "I look."}, call]
    messages = [*HELLO, {"role": "assistant", "content": answer},
                {"role": "user", "content": [result]}]  # fmt: skip
    fields = {"model": "plain", "messages": messages}
    assert refused(deployment, **fields) == ("invalid_request_error", "messages[1].content[1]")


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
def test_reasoning_that_the_template_never_writes_is_left_out(deployment, say, path) -> None:
    """It is named once, beside what else is left out."""
    say(PLAIN)
    answer = ask(deployment)["content"]
    turn = {"role": "assistant", "content": answer}
    fields = {"messages": [*HELLO, turn, *HELLO, turn, *HELLO], "tools": [SEARCH, TOOL]}
    body = body_of(model="forgetful", **fields)
    if path != PATH:
        del body["max_tokens"]
    response = deployment.post(path, body)
    assert response.status_code == 200, response.text
    assert response.headers["x-penstock-ignored"] == "tools[0],messages[1].content[0]"
    if path == PATH:
        (prompt,) = deployment.job("forgetful").texts
        assert ("No." in prompt, "Hm." in prompt) == (True, False)


def test_headers_and_queries_of_betas_are_taken(deployment) -> None:
    headers = {"anthropic-beta": "context-1m-2025-08-07", "anthropic-version": "2023-06-01"}
    for path in (PATH, f"{PATH}/count_tokens"):
        response = deployment.http.post(f"{path}?beta=true", json=body_of(), headers=headers)
        assert response.status_code == 200
        assert response.headers["request-id"] == response.headers["x-request-id"]


def test_the_tokens_of_a_prompt_are_those_that_its_answer_counts(deployment, say) -> None:
    say(PLAIN)
    fields = {"tools": [TOOL, SEARCH], "system": "Be brief.", "thinking": {"type": "disabled"}}
    usage = ask(deployment, **fields)["usage"]
    (text,) = deployment.job("writer").texts
    asked = {"model": "writer", "messages": HELLO, **fields}
    response = deployment.post(f"{PATH}/count_tokens", asked)
    assert response.headers["x-penstock-ignored"] == "tools[1]"
    assert response.json() == {"input_tokens": usage["input_tokens"]}
    prompt = {"prompt": text, "add_special_tokens": False, "model": "writer"}
    assert deployment.ask("/tokenize", **prompt)["count"] == usage["input_tokens"]
