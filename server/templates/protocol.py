"""Messages between an API process and a template's process: frames of JSON over a socket."""

import signal
from typing import Any, Literal

import msgspec

from engine_core.turn_format import TurnFormat

LENGTH_BYTES = 4
INTERRUPT = signal.SIGUSR1
"""Makes a process give up the conversation that it renders."""

# Limits of one conversation: processor time, and time by the clock.
CPU_SECONDS = 2.0
WALL_SECONDS = 6.0

Message = dict[str, Any]
"""A message for a template. Its `content` is a string or a list of text parts. Arguments of a
client's tool calls are text."""


class ChatTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A Jinja template, its file, and the special tokens that it may name. Beside it is the
    checkpoint's own declaration of how a turn is read."""

    source: str
    file: str
    tokens: dict[str, str]
    response_template: dict[str, Any] | None = None


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a template. `variables` are the request's own. A `question` is a word in a
    message in whose place questions are asked: the prompt then ends where a reply's text begins.
    Reasoning that the template writes nowhere is refused, unless the conversation
    `may_lose_reasoning`."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = {}
    question: str = ""
    may_lose_reasoning: bool = False


Question = Conversation | None
"""None only checks that the process lives."""


FormatSource = Literal["declared", "learnt", "table"]


class FoundFormat(msgspec.Struct, frozen=True, tag="format"):
    """The format of a compiled template's turns, and where it is from, or the reason for none."""

    form: TurnFormat | None = None
    source: FormatSource | None = None
    reason: str = ""


class Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    """The prompt, empty for a check. It lacks reasoning, first that of the field `left_out`."""

    prompt: str
    left_out: str = ""


class NotRendered(msgspec.Struct, frozen=True, tag="not rendered"):
    """The reason for no prompt: the template's own message, or its fault. A `field` is one of the
    request that the template leaves out."""

    reason: str
    field: str = ""


Answer = Rendered | FoundFormat | NotRendered
"""The prompt; the format of a compiled template; or why there is none."""


def frame(message: ChatTemplate | Question | Answer) -> bytes:
    """Encode a message behind its length, little-endian."""
    body = msgspec.json.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def frame_size(length: bytes | bytearray) -> int:
    """The size of the body behind the first LENGTH_BYTES of a frame."""
    return int.from_bytes(length, "little")


def text_part(text: str) -> dict[str, str]:
    """A part of a content."""
    return {"type": "text", "text": text}


def has_text(message: Message) -> bool:
    """True if the content has any character."""
    content: str | list[dict[str, str]] = message.get("content") or ""
    return bool(content) if isinstance(content, str) else any(part["text"] for part in content)
