"""Tools, calls and results as text, for templates that know of none."""

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from server.templates.protocol import Conversation, Message

_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def as_text(conversation: Conversation, *, has_system: bool) -> Conversation:
    """The conversation in roles and texts alone. Calls are written as the common format of
    `known_formats.py` has them. Tools are described in the system message if the template
    `has_system`, else in the first message."""
    messages: list[Message] = []
    for are_results, group in groupby(conversation.messages, lambda each: each["role"] == "tool"):
        if are_results:
            results = (f"<tool_response>\n{_text(each)}\n</tool_response>" for each in group)
            messages.append({"role": "user", "content": "\n".join(results)})
        else:
            messages += map(_with_calls, group)
    if conversation.tools:
        tools = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in conversation.tools)
        messages = _describing(_TOOLS.format(tools=tools), messages, has_system=has_system)
    return replace(conversation, messages=messages, tools=None)


def _with_calls(message: Message) -> Message:
    """The message with its calls behind its text."""
    calls: list[dict[str, Any]] = message.get("tool_calls") or []
    if not calls:
        return message
    written = (
        f'<tool_call>\n{{"name": {json.dumps(each["function"]["name"])}, '
        f'"arguments": {each["function"]["arguments"]}}}\n</tool_call>'
        for each in calls
    )
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(filter(None, (_text(message), *written)))}


def _describing(text: str, messages: Sequence[Message], *, has_system: bool) -> list[Message]:
    first, *others = messages
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{_text(first)}\n\n{text}"}, *others]
    if has_system:
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{text}\n\n{_text(first)}"}, *others]


def _text(message: Message) -> str:
    content: str | list[dict[str, str]] = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
