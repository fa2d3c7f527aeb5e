"""The format of an assistant's turn, one record for the parser and the grammar.

A turn is reasoning, text and calls of tools, with markers around them. Calls stand in sections:
`open`, then calls with `between` among them, then `close`. A call is a sequence of literals and
slots. White space of a literal stands for any, or none.
"""

import re
from typing import Literal

import msgspec

IdForm = Literal["any", "nine letters", "functions.name:index"]
SlotName = Literal["name", "arguments", "id", "index"]
Dialect = Literal["json", "python", "gemma"]
_MARKER = re.compile(r"<[^<>\s]+>?|\[[A-Z_]+\]")
JSON_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")


class Slot(msgspec.Struct, frozen=True):
    """The place of a call's name, arguments, id, or number in its turn."""

    slot: SlotName


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The way in which values of these JSON types stand between `open` and `close`.

    Raw text has no `dialect`, and ends at the first `close`. A literal's `quote` delimits
    strings within it, beside the dialect's own quotes.
    """

    types: tuple[str, ...]
    open: str = ""
    close: str = ""
    dialect: Dialect | None = None
    quote: str = ""


class Members(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Arguments as members: `before`, a key, a value, and `between` before the next member.

    A type may have several `values`, of which the text in `open` tells which it is. Where both raw
    text and a literal stand between the same literals, the tool's schema decides.
    """

    before: str = ""
    between: str = ""
    values: tuple[Value, ...]


class CallFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sections of calls. Arguments without `members` are a JSON object. `starts_from` is the number
    of a turn's first call. A section of a format without `many` has one call."""

    open: str = ""
    call: tuple[str | Slot, ...]
    between: str = ""
    close: str = ""
    members: Members | None = None
    many: bool = True
    starts_from: int = 0

    @property
    def opening(self) -> str:
        """The text of a section up to its first slot."""
        first = self.call[0]
        return (self.open + (first if isinstance(first, str) else "")).lstrip()

    @property
    def marker(self) -> str:
        """The marker that calls begin with. Empty if they begin like text or JSON: such calls stand
        at the beginning of a turn's text only."""
        found = _MARKER.match(self.opening)
        return found[0] if found else ""


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The markers around reasoning."""

    open: str
    close: str

    def is_open_at_end_of(self, prompt: str) -> bool:
        """True if a turn behind this prompt begins inside reasoning."""
        return prompt.rstrip().endswith(self.open.strip())


class TurnFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parts of a turn. `text_markers` stand around text, and are no part of it. A history's
    calls get ids of this form."""

    reasoning: Reasoning | None = None
    text_markers: tuple[str, ...] = ()
    calls: tuple[CallFormat, ...] = ()
    ids: IdForm = "any"
