"""`/v1/responses`: its items, its events, and what the engine is asked for."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine_core.messages import Failed
from tests.server.chat_client import HELLO, say_little
from tests.server.chat_templates import LLAMA3, chat_deployment
from tests.server.conftest import Deployment
from tests.server.generation.test_requested_tools import THINKING, WRITES_TOOLS
from tests.server.templates.test_turn_formats import HERMES_CALL, THOUGHTS, template

PATH = "/v1/responses"
WRITER = WRITES_TOOLS + template(HERMES_CALL, answer=THOUGHTS, prompt=THINKING)
GET: dict[str, Any] = {
    "type": "function",
    "name": "get",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "NAME", "arguments": {"KEY": "x"}}</tool_call>'
TURN = "Hm.</think>\n\nI look.\n" + CALL
PLAIN = "Hm.</think>\n\nNo."
# As DeepSeek-R1's: earlier reasoning is cut off, and not taken in a field of its own.
FORGETFUL = WRITES_TOOLS + template(
    HERMES_CALL, answer="{{ (m.content or '').split('</think>')[-1] }}", prompt=THINKING
)
TEMPLATES = {"writer": WRITER, "forgetful": FORGETFUL, "plain": LLAMA3}


@pytest.fixture(scope="module")
def open_deployment(tokenizer) -> Iterator[Deployment]:
    with chat_deployment(tokenizer, TEMPLATES) as deployment:
        yield deployment


@pytest.fixture
def deployment(open_deployment) -> Deployment:
    return say_little(open_deployment)


def ask(deployment: Deployment, **fields: Any) -> dict[str, Any]:
    return deployment.ask(PATH, **{"model": "writer", "input": "Hello"} | fields)


def events_of(deployment: Deployment, **fields: Any) -> list[dict[str, Any]]:
    """Those of a stream, each of which has its type as its name too."""
    response = deployment.post(PATH, {"model": "writer", "input": "Hello", "stream": True} | fields)
    *lines, last, rest = response.text.split("\n\n")
    assert rest == ""
    if last != "data: [DONE]":
        lines.append(last)
    events = []
    for text in lines:
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    return events


def answer_of(deployment: Deployment, streamed: bool, **fields: Any) -> dict[str, Any]:
    if not streamed:
        return ask(deployment, **fields)
    return events_of(deployment, **fields)[-1]["response"]


def prompt_of(deployment: Deployment) -> str:
    (prompt,) = deployment.job("writer").texts
    return prompt


def file(data: str) -> list[dict[str, Any]]:
    """A message of one file."""
    return [{"role": "user", "content": [{"type": "input_file", "file_data": data}]}]


def test_a_file_of_text_is_its_text(deployment, say):
    say(PLAIN)
    ask(deployment, input=file("data:text/markdown;base64,wqdJcm9uLg=="))
    assert "§Iron." in prompt_of(deployment)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_items_of_a_turn(deployment, say, streamed):
    say(TURN.replace("NAME", "get").replace("KEY", "a"))
    answer = answer_of(deployment, streamed, tools=[GET])
    assert (answer["object"], answer["status"], answer["store"]) == ("response", "completed", False)
    reasoning, message, call = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    (part,) = message["content"]
    assert (part["type"], part["text"], part["annotations"]) == ("output_text", "I look.", [])
    assert (call["name"], call["arguments"]) == ("get", '{"a": "x"}')
    assert [item["status"] for item in answer["output"]] == ["completed"] * 3
    assert len({item["id"] for item in answer["output"]}) == 3
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens_details"]["reasoning_tokens"] > 0
    assert answer["tools"][0]["name"] == "get"
    assert answer["text"] == {"format": {"type": "text"}}


def test_the_events_of_a_turn(deployment, say):
    say(TURN.replace("NAME", "get").replace("KEY", "a"))
    events = events_of(deployment, tools=[GET])
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert [kind for before, kind in zip(["", *kinds], kinds, strict=False) if kind != before] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    for kind, whole, index in (
        ("reasoning_text", "text", 0),
        ("output_text", "text", 1),
        ("function_call_arguments", "arguments", 2),
    ):
        of_kind = [event for event in events if event["type"].startswith(f"response.{kind}.")]
        assert {event["output_index"] for event in of_kind} == {index}
        *deltas, done = of_kind
        assert "".join(event["delta"] for event in deltas) == done[whole]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_is_cut(deployment, say, tokenizer, streamed):
    say(TURN.replace("NAME", "get").replace("KEY", "a"))
    most = len(tokenizer.raw.encode(TURN.partition("NAME")[0], add_special_tokens=False).ids) + 16
    answer = answer_of(deployment, streamed, tools=[GET], max_output_tokens=most)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][-1]["status"] == "incomplete"


def test_items_come_back(deployment, say):
    """An answer goes back as it came, with the result of its call."""
    say(TURN.replace("NAME", "get").replace("KEY", "a"))
    answer = ask(deployment, tools=[GET], instructions="Be brief.")
    call = answer["output"][-1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "seven"}
    deployment.engines["writer"].received.clear()
    say(PLAIN)
    again = ask(
        deployment,
        instructions="Be brief.",
        input=[{"role": "user", "content": "Hello"}, *answer["output"], result],
        tools=[GET],
    )
    prompt = prompt_of(deployment)
    order = ["Be brief.", "Hello", "I look.", '{"name": "get", "arguments": {"a": "x"}}', "seven"]
    places = [prompt.index(text) for text in order]
    assert places == sorted(places)
    assert again["output"][-1]["content"][0]["text"] == "No."


def test_the_system_s_messages_at_the_beginning_are_one(deployment, say):
    say(PLAIN)
    items = [{"role": "developer", "content": "Second."}, {"role": "user", "content": "Hello"}]
    ask(deployment, instructions="First.", input=items)
    assert prompt_of(deployment).count("<|system|>") == 1


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("tool", "name", "expected"),
    [
        (
            {"type": "namespace", "name": "far", "tools": [GET]},
            "far__get",
            {"type": "function_call", "namespace": "far", "name": "get", "arguments": '{"a": "x"}'},
        ),
        (
            {"type": "custom", "name": "run"},
            "run",
            {"type": "custom_tool_call", "name": "run", "input": "x"},
        ),
    ],
)
def test_other_tools_are_functions_of_the_model(deployment, say, streamed, tool, name, expected):
    say(TURN.replace("NAME", name).replace("KEY", "input" if "input" in expected else "a"))
    call = answer_of(deployment, streamed, tools=[tool])["output"][-1]
    assert expected.items() <= call.items()
    say(PLAIN)
    result = {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "seven"}
    deployment.engines["writer"].received.clear()
    ask(deployment, input=[call, result], tools=[tool])
    assert f'{{"name": "{name}", "arguments": ' in prompt_of(deployment)


def test_hosted_tools_are_left_out(deployment, say):
    say(PLAIN)
    body = {"model": "writer", "input": "Hello", "tools": [{"type": "web_search"}, GET]}
    response = deployment.post(PATH, body)
    assert response.headers["x-penstock-ignored"] == "tools[0]"
    assert [tool["type"] for tool in response.json()["tools"]] == ["function"]
    assert len(deployment.job("writer").params.turn.tools) == 1


def test_what_is_left_out_fits_a_header(deployment, say):
    say(PLAIN)
    tools = [GET, *([{"type": "web_search"}] * 1000)]
    answer = deployment.post(PATH, {"model": "writer", "input": "Hello", "tools": tools})
    named = answer.headers["x-penstock-ignored"].split(",")
    assert named == [*(f"tools[{number + 1}]" for number in range(len(named) - 1)), "..."]
    assert 100 < len(named) < 1000


@pytest.mark.parametrize(
    ("choice", "calls", "names"),
    [
        (None, "auto", ["get", "set"]),
        ("none", "none", ["get", "set"]),
        ("required", "required", ["get", "set"]),
        ({"type": "function", "name": "set"}, "required", ["set"]),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "get"}, {"type": "web_search"}],
            },
            "auto",
            ["get"],
        ),
    ],
)
def test_what_may_be_called(deployment, say, choice, calls, names):
    say(PLAIN)
    ask(deployment, tools=[GET, GET | {"name": "set", "strict": True}], tool_choice=choice)
    rules = deployment.job("writer").params.turn
    assert (rules.calls, [rule.name for rule in rules.tools]) == (calls, names)


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ({"type": "json_object"}, "json_schema"),
        ({"type": "json_schema", "name": "n", "schema": SCHEMA}, "json_schema"),
        ({"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": False},
         "loose_json_schema"),
    ],
)  # fmt: skip
def test_the_format_stands_beside_tools(deployment, say, form, kind):
    say(PLAIN)
    answer = ask(deployment, tools=[GET], text={"format": form, "verbosity": "low"})
    assert deployment.job("writer").params.turn.text.kind == kind
    assert answer["text"] == {"format": form, "verbosity": "low"}


@pytest.mark.parametrize("streamed", [False, True])
def test_log_probabilities(deployment, say, streamed):
    say(PLAIN)
    include = ["message.output_text.logprobs"]
    answer = answer_of(deployment, streamed, include=include, top_logprobs=1)
    entries = answer["output"][-1]["content"][0]["logprobs"]
    assert entries
    assert all(len(entry["top_logprobs"]) == 1 for entry in entries)


def test_what_an_answer_repeats(deployment, say):
    say(PLAIN)
    given = {
        "temperature": 0.5, "top_p": 0.5, "metadata": {"a": "b"}, "truncation": "auto",
        "max_output_tokens": 64,
    }  # fmt: skip
    answer = ask(deployment, reasoning={"effort": "low", "summary": "auto"}, **given)
    assert given.items() <= answer.items()
    assert (answer["reasoning"]["effort"], answer["reasoning"]["summary"]) == ("low", "auto")


def signed(deployment: Deployment, say: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Signed reasoning without its text, and the message behind it."""
    say(PLAIN)
    reasoning, message = ask(deployment, include=["reasoning.encrypted_content"])["output"]
    deployment.engines["writer"].received.clear()
    return {**reasoning, "content": None}, message


@pytest.mark.parametrize("beside", [None, [{"type": "reasoning_text", "text": "Other."}]])
def test_signed_reasoning_reaches_the_prompt(deployment, say, beside):
    """The signed text counts, not the text beside it."""
    reasoning, message = signed(deployment, say)
    items = [reasoning | {"content": beside}, message, {"role": "user", "content": "Go on."}]
    response = deployment.post(PATH, {"model": "writer", "input": items})
    assert "x-penstock-ignored" not in response.headers
    assert "<think>\nHm.\n</think>\n\nNo." in prompt_of(deployment)
    assert "Other." not in prompt_of(deployment)


def test_reasoning_that_is_not_ours_is_left_out(deployment, say):
    """One warning says it of a whole conversation."""
    reasoning, message = signed(deployment, say)
    begin = "B" if reasoning["encrypted_content"][0] == "A" else "A"
    forged = {**reasoning, "encrypted_content": begin + reasoning["encrypted_content"][1:]}
    foreign = {**reasoning, "encrypted_content": "gAAAAABo\u00e4"}
    question = {"role": "user", "content": "Go on."}
    items = [question, forged, message, question, foreign, message, question]
    response = deployment.post(PATH, {"model": "writer", "input": items})
    assert response.headers["x-penstock-ignored"] == "input[1].encrypted_content"
    assert "No." in prompt_of(deployment)
    assert "Hm." not in prompt_of(deployment)


def test_reasoning_that_the_template_never_writes_is_left_out(deployment, say):
    """Of `/v1/chat/completions` it is refused."""
    say(PLAIN)
    items = ask(deployment)["output"]
    again = [*HELLO, *items, *HELLO, *items, *HELLO]
    for path in (PATH, f"{PATH}/input_tokens"):
        response = deployment.post(path, {"model": "forgetful", "input": again})
        assert response.status_code == 200, response.text
        assert response.headers["x-penstock-ignored"] == "input[1]"
    (prompt,) = deployment.job("forgetful").texts
    assert ("No." in prompt, "Hm." in prompt) == (True, False)
    turn = {"role": "assistant", "content": "No.", "reasoning_content": "Hm."}
    refused = deployment.refusal(
        "/v1/chat/completions", model="forgetful", messages=[*HELLO, turn, *HELLO]
    )
    assert refused["param"] == "messages[1].reasoning_content"


def test_input_tokens_are_those_of_the_prompt(deployment, say):
    say(PLAIN)
    asked = {"model": "writer", "input": "Hello", "tools": [GET]}
    answer = deployment.ask(PATH, **asked)
    counted = deployment.ask(f"{PATH}/input_tokens", **asked)
    assert counted == {
        "object": "response.input_tokens", "input_tokens": answer["usage"]["input_tokens"],
    }  # fmt: skip


@pytest.mark.parametrize("fields", [{"store": True}, {"previous_response_id": "r"}])
def test_nothing_is_stored_without_a_state_folder(deployment, fields):
    response = deployment.post(PATH, {"model": "writer", "input": "Hello"} | fields)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (501, "state_unavailable")
    assert [error["param"]] == [*fields]


def test_a_stream_that_fails(deployment):
    deployment.reset(tokens=[40] * 8, fail_after=4)
    *_, error, failed = events_of(deployment)
    assert error["code"] == failed["response"]["error"]["code"] == "row_failed"
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert failed["response"]["status"] == "failed"


def custom(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "custom", "name": "run"} | fields]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": []}, "input"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference"}]}, "input[0].type"),
        *(({"input": file(data)}, "input[0].content[0].file_data")
          for data in ("data:application/pdf;base64,JVBERi0=", "data:text/plain;base64,/w==",
                       "data:text/plain;base64,!", "")),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
         "input[0].content[0].file_data"),
        ({"input": [{"type": "compaction"}]}, "input[0].encrypted_content"),
        ({"input": [{"type": "compaction", "encrypted_content": "AAAA"}]},
         "input[0].encrypted_content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": "[]"}]},
         "input[0].arguments"),
        ({"input": [{"role": "user", "content": "x"},
                    {"type": "function_call_output", "call_id": "c", "output": "x"}]},
         "input[1].call_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [GET], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [GET], "tool_choice": {"type": "function", "name": "no"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [GET, GET]}, "tools[1].name"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [GET, {"type": "namespace", "name": "n", "tools": [GET | {"parameters": 1}]}]},
         "tools[1].tools[0].parameters"),
        ({"tools": custom(format={"type": "grammar", "syntax": "lark"})}, "tools[0].format"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": 1}}},
         "text.format.schema"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(deployment, fields, param):
    error = deployment.refusal(PATH, **{"model": "writer", "input": "Hello"} | fields)
    assert error["param"] == param
    assert param in error["message"]


CALL_ITEM = {"type": "function_call", "name": "get", "call_id": "c", "arguments": "{}"}
TURN_ITEMS: list[dict[str, Any]] = [
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"role": "assistant", "content": "I look."},
    CALL_ITEM,
    CALL_ITEM | {"call_id": "d"},
    {"type": "function_call_output", "call_id": "c", "output": "seven"},
]


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("prompt", "input"),
        ("messages[0].role", "instructions"),
        ("messages[1].role", "input[0]"),
        ("messages[2].content", "input[2].content"),
        ("messages[2].reasoning_content", "input[1]"),
        ("messages[2].tool_calls", "input[3]"),
        ("messages[2].tool_calls[1]", "input[4]"),
        ("messages[2].tool_calls[1].function.arguments", "input[4].arguments"),
        ("messages[3].role", "input[5]"),
        ("messages[3].tool_call_id", "input[5].call_id"),
        ("tools[0].function.parameters.properties", "tools[0].parameters.properties"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_named(deployment, said, field, stream):
    refusal = Failed(0, "context_length_exceeded", f"{said} has 9 tokens", said)
    deployment.engines["writer"].script.refusal = refusal
    error = deployment.refusal(
        PATH, model="writer", instructions="Be brief.", input=[*HELLO, *TURN_ITEMS], tools=[GET],
        stream=stream,
    )  # fmt: skip
    assert error["param"] == field
    assert error["message"].startswith(f"{field} has 9")


def test_what_the_template_leaves_out_is_named(deployment):
    items = [*HELLO, *TURN_ITEMS[1:]]
    assert deployment.refusal(PATH, model="plain", input=items)["param"] == "input[2]"
