"""Tools, calls and results as text, for templates that leave them out."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from engine_core.turn_format import CallFormat
from server.templates.protocol import Message
from server.turns.written_calls import WrittenCall, example_call, written_arguments, written_calls

_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return the name of the function and its arguments in this form:
{example}"""


def with_tools_as_text(
    messages: Sequence[Message],
    tools: Sequence[dict[str, Any]],
    form: CallFormat,
    *,
    has_system: bool,
) -> list[Message]:
    """The messages with the tools, and how they are called, behind the text of the system message.
    Without one, they come in front: as one if the template `has_system`."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _TOOLS.format(tools=lines, example=example_call(form))
    first, *others = messages
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{_text(first)}\n\n{text}"}, *others]
    if has_system:
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{text}\n\n{_text(first)}"}, *others]


def with_calls_as_text(messages: Sequence[Message], form: CallFormat) -> list[Message]:
    """The messages with their calls behind their texts."""
    return [_with_calls(message, form) if message.get("tool_calls") else message
            for message in messages]  # fmt: skip


def _with_calls(message: Message, form: CallFormat) -> Message:
    calls: list[WrittenCall] = []
    for call in message["tool_calls"]:
        function = call["function"]
        arguments = written_arguments(form, json.loads(function["arguments"]))
        calls.append(WrittenCall(function["name"], arguments, call["id"]))
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    texts = _text(message), written_calls(form, calls)
    return {**rest, "content": "\n".join(filter(None, texts))}


def with_results_as_text(messages: Sequence[Message]) -> list[Message]:
    """The messages with results of tools in a user's."""
    found: list[Message] = []
    for are_results, group in groupby(messages, lambda message: message["role"] == "tool"):
        if are_results:
            results = (f"<tool_response>\n{_text(each)}\n</tool_response>" for each in group)
            found.append({"role": "user", "content": "\n".join(results)})
        else:
            found += group
    return found


def _text(message: Message) -> str:
    content: str | list[dict[str, str]] = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
