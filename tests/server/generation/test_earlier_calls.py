"""Earlier calls of tools, and their results, on the way to a template."""

from typing import Any

import msgspec
import pytest

from engine_core.refusal import RefusalError
from server.generation.conversation import ChatOptions, conversation
from server.schemas.chat import ChatMessage
from server.templates.protocol import ChatTemplate

Message = dict[str, Any]

OPTIONS = ChatOptions(add_generation_prompt=None, continue_final_message=None, variables={})
USER: Message = {"role": "user", "content": "Hello"}


async def shown(*messages: Message) -> list[Message]:
    """What the template gets behind a user's message."""
    parsed = msgspec.convert([USER, *messages], list[ChatMessage])
    template = ChatTemplate(source="", file="", tokens={})
    return (await conversation(parsed, OPTIONS, template)).messages[1:]


def call(name: str, call_id: str | None = None, arguments: str = "{}") -> Message:
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


def calling(*calls: Message, **fields: object) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": [*calls], **fields}


def result(call_id: str | None = None, **fields: object) -> Message:
    return {"role": "tool", "content": "42", "tool_call_id": call_id, **fields}


def told(call_id: str, name: str) -> Message:
    return {"role": "tool", "content": "42", "tool_call_id": call_id, "name": name}


async def test_a_call_and_its_result() -> None:
    called, answered = await shown(calling(call("f", "c1", '{"a": 1}')), result("c1"))
    function = {"name": "f", "arguments": '{"a": 1}'}
    written = {"id": "c1", "type": "function", "function": function}
    assert called == {"role": "assistant", "tool_calls": [written]}
    assert answered == told("c1", "f")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        # In any order, and long after.
        ([calling(call("f", "c1"), call("g", "c2")), result("c2"), USER, result("c1")],
         [told("c2", "g"), told("c1", "f")]),
        # Without ids: in the order of the calls, or by their names.
        ([calling(call("f"), call("g")), result(), result()],
         [told("call_0", "f"), told("call_1", "g")]),
        ([calling(call("f"), call("g")), result(name="g"), result()],
         [told("call_1", "g"), told("call_0", "f")]),
        ([calling(call("f")), result(), calling(call("g")), result()],
         [told("call_0", "f"), told("call_1", "g")]),
        # One id for two calls, the second of which is meant behind it.
        ([calling(call("f", "c")), result("c"), calling(call("g", "c")), result("c")],
         [told("c", "f"), told("c", "g")]),
        ([calling(call("f", "c1")), result("c1", name="of its own")], [told("c1", "of its own")]),
    ],
)  # fmt: skip
async def test_results_find_their_calls(messages: list[Message], expected: list[Message]) -> None:
    assert [each for each in await shown(*messages) if each["role"] == "tool"] == expected


async def test_the_older_form_is_one_call_and_its_result() -> None:
    function = {"name": "f", "arguments": "{}"}
    older = {"role": "assistant", "function_call": function}
    called, answered, other = await shown(
        older,
        {"role": "function", "name": "f", "content": "42"},
        {"role": "function", "name": "f", "content": "a role of the template's own"},
    )
    assert called["tool_calls"] == [{"id": "call_0", "type": "function", "function": function}]
    assert answered == told("call_0", "f")
    assert other["role"] == "function"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([result("c1")], "messages[1].tool_call_id"),
        ([result()], "messages[1].tool_call_id"),
        ([calling(call("f", "c1")), result("c2")], "messages[2].tool_call_id"),
        ([result("c1"), calling(call("f", "c1"))], "messages[1].tool_call_id"),
        ([calling(call("f")), result(), result()], "messages[3].tool_call_id"),
        ([calling(call("f"), function_call={"name": "f", "arguments": "{}"})],
         "messages[1].function_call"),
        ([{"role": "assistant", "function_call": {"name": "f", "arguments": "[]"}}],
         "messages[1].function_call.arguments"),
        ([calling(call("f"), call("f", arguments="{"))],
         "messages[1].tool_calls[1].function.arguments"),
        ([{**USER, "function_call": {"name": "f", "arguments": "{}"}}],
         "messages[1].function_call"),
    ],
)  # fmt: skip
async def test_a_result_without_its_call_and_other_faults_are_named(
    messages: list[Message], param: str
) -> None:
    with pytest.raises(RefusalError) as refused:
        await shown(*messages)
    assert refused.value.param == param
