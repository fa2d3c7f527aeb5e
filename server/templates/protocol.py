"""Messages between the API process and a template's process: frames of JSON over a socket."""

import signal
from typing import Any

import msgspec

LENGTH_BYTES = 4
INTERRUPT = signal.SIGUSR1
"""Has a process give up the conversation that it renders."""

# The limits of one conversation: processor time, and time by the clock, which also passes while
# other processes run.
CPU_SECONDS = 2.0
WALL_SECONDS = 6.0

Message = dict[str, Any]
"""A message as templates see it; its `content` is a string or a list of text parts, and a client's
tool calls have their arguments as text."""


class ChatTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A Jinja template, the file that it is from, and the special tokens that it may name."""

    source: str
    file: str
    tokens: dict[str, str]


class Conversation(msgspec.Struct, frozen=True, kw_only=True, tag="conversation"):
    """The variables of a template. `variables` are the request's own, by any other name.

    Contents are strings or text parts as the client wrote them, arguments of tool calls are text.
    """

    messages: list[Message]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = {}


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """A check that the process is alive, answered by an empty `Rendered`."""


Question = Conversation | Ping


class Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    """The prompt. Empty after compiling the template."""

    text: str


class NotRendered(msgspec.Struct, frozen=True, tag="not_rendered"):
    """The reason for no prompt: the template's own message, its fault, or what it leaves out. Then
    `field` is that of the request which has it."""

    reason: str
    field: str = ""


Answer = Rendered | NotRendered


def frame(message: ChatTemplate | Question | Answer) -> bytes:
    """A message with its length before it, little-endian."""
    body = msgspec.json.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def frame_size(length: bytes | bytearray) -> int:
    """The bytes that follow the first LENGTH_BYTES of a frame."""
    return int.from_bytes(length, "little")


def text_part(text: str) -> dict[str, str]:
    """A part of a content."""
    return {"type": "text", "text": text}


def has_text(message: Message) -> bool:
    """Whether its content has any character."""
    content: str | list[dict[str, str]] = message.get("content") or ""
    return bool(content) if isinstance(content, str) else any(part["text"] for part in content)
