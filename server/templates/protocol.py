"""What the API process and a template's process say to each other: frames of JSON over a socket."""

from typing import Any

import msgspec

LENGTH_BYTES = 4

# For one conversation: of the processor, and by the clock, which also counts while others have the
# processor.
CPU_SECONDS = 2.0
WALL_SECONDS = 6.0


class ChatTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A Jinja template, the file that it is from, and the special tokens that it may name."""

    source: str
    file: str
    tokens: dict[str, str]


class Conversation(msgspec.Struct, frozen=True, kw_only=True, tag="conversation"):
    """What a template is rendered with. `variables` are the request's own, by any other name."""

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    variables: dict[str, Any] = {}


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Asks for a sign of life: an empty `Rendered`."""


Question = Conversation | Ping


class Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    """The prompt; of a template that has just been compiled the empty text."""

    text: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why there is none: the template's own words, or what is wrong with it."""

    reason: str


Answer = Rendered | Refused


def frame(message: ChatTemplate | Question | Answer) -> bytes:
    """A message with its length before it, little-endian."""
    body = msgspec.json.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def frame_size(head: bytes | bytearray) -> int:
    """The bytes that follow the first LENGTH_BYTES of a frame."""
    return int.from_bytes(head, "little")
