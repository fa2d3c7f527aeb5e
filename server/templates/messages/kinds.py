"""Kinds of message, and the form in which a template takes each."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

Message = dict[str, Any]
"""A message as templates see it; its `content` is a string or a list of text parts, and a client's
tool calls have their arguments as text."""

# Earlier reasoning, by each name under which published templates look for it.
REASONING_NAMES = ("reasoning_content", "reasoning", "thinking", "thought", "tool_plan")


class Kind(NamedTuple):
    """What decides how a message is written: its role, its place, and whether it calls tools."""

    role: str
    is_first: bool
    has_calls: bool = False


class Manner(NamedTuple):
    """How a template writes a kind of message: as which role, in which forms of content.

    A template that takes neither strings nor several parts takes one part. `is_written` is None if
    the template refuses the kind, and False if it leaves it out in every form.
    """

    role: str
    takes_strings: bool = True
    takes_parts: bool = False
    is_written: bool | None = None
    loses_name: bool = False

    def content(self, content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
        """A client's content in a form that the template takes."""
        if isinstance(content, str):
            return content if self.takes_strings else [text_part(content)]
        if self.takes_parts:
            return content
        joined = "\n".join(part["text"] for part in content)
        return joined if self.takes_strings else [text_part(joined)]


class CallManner(NamedTuple):
    """How a template writes tool calls; `no_content` is what an assistant without text has."""

    arguments_are_text: bool = False
    no_content: Message = {}  # noqa: RUF012 -- nothing changes it
    is_written: bool | None = None
    loses_second: bool = False

    def shaped(self, message: Message) -> Message:
        """A message with tool calls in the form that the template takes."""
        shaped = {**message, "tool_calls": [self._call(call) for call in message["tool_calls"]]}
        if not has_text(message):
            shaped.pop("content", None)
            shaped |= self.no_content
        return shaped

    def _call(self, call: Message) -> Message:
        if self.arguments_are_text:
            return call
        function = call["function"]
        return {
            **call,
            "function": {**function, "arguments": msgspec.json.decode(function["arguments"])},
        }


# Conversations of many messages have few kinds.
_kind = lru_cache(256)(Kind)


def kinds_of(messages: Sequence[Message]) -> list[Kind]:
    """The kind of each message of a conversation."""
    kinds: list[Kind] = []
    for message in messages:
        has_calls = bool(message.get("tool_calls"))
        kinds.append(_kind(message["role"], not kinds and not has_calls, has_calls))
    return kinds


def shaped_message(message: Message, manner: Manner, calls: CallManner) -> Message:
    """A client's message in the form that a template takes."""
    shaped = {**message, "role": manner.role}
    if "content" in message:
        shaped["content"] = manner.content(message["content"])
    if message.get("tool_calls"):
        shaped = calls.shaped(shaped)
    if (name := reasoning_name(message)) is not None:
        shaped |= dict.fromkeys(REASONING_NAMES, message[name])
    return shaped


def text_part(text: str) -> dict[str, str]:
    """A part of a content."""
    return {"type": "text", "text": text}


def has_text(message: Message) -> bool:
    """Whether its content has any character."""
    content: str | list[dict[str, str]] = message.get("content") or ""
    return bool(content) if isinstance(content, str) else any(part["text"] for part in content)


def reasoning_name(message: Message) -> str | None:
    """The name under which a client's message has reasoning, if it has any."""
    if "reasoning_content" in message:
        return "reasoning_content"
    return "reasoning" if "reasoning" in message else None
