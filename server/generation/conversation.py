"""From a request's messages to the prompt, by the model's chat template."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request

from server.errors import quoted
from server.generation.earlier_calls import EarlierCalls
from server.schemas.chat import ChatMessage, ContentPart
from server.schemas.common import invalid, value_under_any_name
from server.service.service import Model, record_of, service_of, within_limit
from server.templates.protocol import ChatTemplate, Conversation, frame, has_text, text_part

_OWN_NAMES = {
    "messages",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
}
_OF_ASSISTANTS = ("refusal", "tool_calls", "function_call", "reasoning_content", "reasoning")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "assistant": ("text", "refusal", "thinking"),
    "tool": ("text", "document"),
}
"""The types of parts that a role's content may have. Those of others are texts."""
_AT_ONCE = 1024
"""Messages to parse before others have a turn: half a millisecond's. A body may hold 100,000s."""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a conversation's prompt. `variables` are the request's own for the template, the
    others behind them as in `Conversation`."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None
    variables: dict[str, Any]
    tools: list[dict[str, Any]] | None = None
    question: str = ""
    may_lose_reasoning: bool = False


async def chat_prompt(
    request: Request, model: Model, messages: list[ChatMessage], options: ChatOptions
) -> str:
    """The text for the model to continue, special tokens written out.

    The ledger holds the conversation meanwhile. The record names reasoning that is left out.
    Raises RefusalError: a message at fault, texts far beyond the model's length, no room, a
    template that refuses, no time.
    """
    model.text_bound.check_length(_num_characters(messages), "messages")
    # Only the frame waits: messages without text are many times its size in memory.
    parsed = await conversation(messages, options, model.chat.template)
    question = frame(parsed)
    del parsed
    service, record = service_of(request), record_of(request)
    key = record.client.share
    with (
        service.in_flight,
        service.ledger.account(key.number, "a conversation that waits for its template") as account,
    ):
        account.hold(len(question))
        rendering = model.chat.prompt_of(question, key)
        rendered = await within_limit(service.limits, record, rendering)
    model.text_bound.check_length(len(rendered.prompt), "messages")
    if rendered.left_out:
        record.ignored = (*record.ignored, rendered.left_out)
    return rendered.prompt


async def conversation(
    messages: Sequence[ChatMessage], options: ChatOptions, template: ChatTemplate
) -> Conversation:
    """Parse the messages, with other requests in between. Raises RefusalError, naming the message,
    its part, or the variable at fault."""
    _check_variables(options.variables, template)
    parsed: list[dict[str, Any]] = []
    calls = EarlierCalls()
    for number, message in enumerate(messages):
        if number % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)
        parsed.append(_template_message(message, f"messages[{number}]", calls))
    continues = bool(options.continue_final_message)
    if continues:
        _check_continued(options, parsed)
    generates = options.add_generation_prompt
    return Conversation(
        messages=parsed,
        tools=options.tools,
        add_generation_prompt=not continues if generates is None else generates,
        continue_final_message=continues,
        variables=options.variables,
        question=options.question,
        may_lose_reasoning=options.may_lose_reasoning,
    )


def _num_characters(messages: Sequence[ChatMessage]) -> int:
    return sum(len(message.role) + _length(message.content) for message in messages)


def _length(content: str | list[ContentPart] | None) -> int:
    if content is None or isinstance(content, str):
        return len(content or "")
    return sum(len(_text(part)) for part in content)


def last_answer(messages: Sequence[ChatMessage]) -> str:
    """The text of the last message if it is an assistant's, else none. Raises RefusalError as
    `conversation` does."""
    *others, last = messages
    if last.role != "assistant" or last.content is None:
        return ""
    if isinstance(last.content, str):
        return last.content
    return "\n".join(_texts(last.content, f"messages[{len(others)}].content", last.role))


def _check_variables(variables: dict[str, Any], template: ChatTemplate) -> None:
    for name in variables:
        if name in _OWN_NAMES or name in template.tokens:
            field = f"chat_template_kwargs.{name}"
            raise invalid(field, "cannot be set by a request")


def _check_continued(options: ChatOptions, messages: list[dict[str, Any]]) -> None:
    field = "continue_final_message"
    if options.add_generation_prompt:
        raise invalid(field, "not together with add_generation_prompt")
    if not has_text(messages[-1]):
        raise invalid(field, "the final message has no text")


def _template_message(message: ChatMessage, field: str, calls: EarlierCalls) -> dict[str, Any]:
    """One message as its client wrote it, without null fields."""
    is_assistant = message.role == "assistant"
    found: dict[str, Any] = {"role": message.role}
    if message.content is not None:
        found |= _content(message.content, f"{field}.content", message.role)
    elif not is_assistant:
        raise invalid(f"{field}.content", "is required")
    for name in () if is_assistant else _OF_ASSISTANTS:
        if getattr(message, name) not in (None, []):
            raise invalid(f"{field}.{name}", "only an assistant has this")
    if message.refusal is not None:
        found["content"] = _with_refusal(found.get("content"), message.refusal)
    for name in ("name", "tool_call_id", "reasoning_content", "reasoning"):
        if (value := getattr(message, name)) is not None:
            found[name] = value
    found |= calls.fields_of(message, field)
    if "reasoning" in found and "reasoning_content" in found:
        values = [(f"{field}.{name}", found[name]) for name in ("reasoning_content", "reasoning")]
        value_under_any_name(*values)
    return found


def _content(content: str | list[ContentPart], field: str, role: str) -> dict[str, Any]:
    """The content, and the reasoning that its parts hold."""
    if isinstance(content, str):
        return {"content": content}
    found: dict[str, Any] = {"content": [text_part(text) for text in _texts(content, field, role)]}
    if thoughts := "".join(part.thinking or "" for part in content if part.type == "thinking"):
        found["reasoning_content"] = thoughts
        if not found["content"]:
            del found["content"]
    return found


def _with_refusal(
    content: str | list[dict[str, str]] | None, refusal: str
) -> str | list[dict[str, str]]:
    if isinstance(content, list):
        return [*content, text_part(refusal)]
    return "\n".join(text for text in (content, refusal) if text)


def _texts(content: list[ContentPart], field: str, role: str) -> Iterator[str]:
    """Yield the texts of parts but for reasoning. Raises RefusalError for a part at fault."""
    served = _PARTS.get(role, ("text",))
    for number, part in enumerate(content):
        name, kind = f"{field}[{number}]", part.type
        if kind not in served:
            only = ", ".join(map(repr, served))
            raise invalid(name, f"parts of type {quoted(kind)} are not served here, only {only}")
        if getattr(part, kind) is None:
            raise invalid(f"{name}.{kind}", "is required")
        if kind != "thinking":
            yield _text(part)


def _text(part: ContentPart) -> str:
    if part.type == "document" and part.document is not None:
        return part.document.text
    return (part.refusal if part.type == "refusal" else part.text) or ""
