"""Messages between the API process and a template's process: frames of JSON over a socket."""

from typing import Any

import msgspec

LENGTH_BYTES = 4

# The limits of one conversation: processor time, and time by the clock, which also passes while
# other processes run.
CPU_SECONDS = 2.0
WALL_SECONDS = 6.0


class ChatTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A Jinja template, the file that it is from, and the special tokens that it may name."""

    source: str
    file: str
    tokens: dict[str, str]


class Conversation(msgspec.Struct, frozen=True, kw_only=True, tag="conversation"):
    """The variables of a template. `variables` are the request's own, by any other name.

    Contents are strings or text parts as the client wrote them, arguments of tool calls are text.
    """

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = {}


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Checks that the process is alive; answered by an empty `Rendered`."""


Question = Conversation | Ping


class Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    """The prompt; empty after compiling the template."""

    text: str


class NotRendered(msgspec.Struct, frozen=True, tag="not_rendered"):
    """The reason for no prompt: the template's own message, its fault, or what it leaves out, and
    then the `field` of the request that has it."""

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
