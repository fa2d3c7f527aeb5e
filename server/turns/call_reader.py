"""Reads a section of calls in one format."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from engine_core.turn_format import CallFormat, Slot
from server.turns.arguments import MemberReader, copy_json, is_object, read_json
from server.turns.text_source import TextSource, Waiting

_ID = re.compile(r"[\w.:\-]")


class Envelope(NamedTuple):
    """The keys of a call that is a JSON object, and the literals around it."""

    before: str
    name: str
    arguments: str
    after: str


class CallReader:
    """Reads calls from a source. What begins no call is left unread."""

    def __init__(
        self, source: TextSource, form: CallFormat, tools: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._source = source
        self._form = form
        self._tools = tools
        self._names = sorted(tools, key=len, reverse=True)
        self._envelope = envelope_of(form.call)
        before = (form.open + self._envelope.before).lstrip() if self._envelope else form.opening
        self._opening = before.removeprefix(form.marker)

    def section(
        self,
        begin: Callable[[str, str], None],
        argue: Callable[[str], None],
        end: Callable[[bool], None],
    ) -> Waiting[None]:
        """Read calls behind the marker, if there are any. An end follows every begin."""
        self._begin, self._argue, self._end = begin, argue, end
        self._source.mark()
        opened = yield from self._source.takes("\n" + self._opening)
        if not (opened and (yield from self._call(opened=True))):
            self._source.back()
            return
        while self._form.many:
            self._source.mark()
            another = yield from self._source.takes(self._form.between + "\n")
            if not (another and (yield from self._call(opened=False))):
                self._source.back()
                break
        yield from self._source.takes("\n" + self._form.close)

    def _call(self, *, opened: bool) -> Waiting[bool]:
        """Read a call, of which the first literal may be read. False if there is none: the mark
        stands."""
        if self._envelope:
            opened = opened or (yield from self._source.takes(self._envelope.before))
            return opened and (yield from self._object(self._envelope))
        name = call_id = ""
        for place, piece in enumerate(self._form.call):
            if isinstance(piece, str):
                opened = opened and not place
                if not (opened or (yield from self._source.takes("\n" + piece))):
                    return False
            elif piece.slot == "name":
                name = yield from self._name()
            elif piece.slot == "arguments":
                if not name:
                    return False
                yield from self._arguments(name, call_id, self._form.call[place + 1 :])
                return True
            else:
                call_id = yield from self._id()
        return False

    def _name(self) -> Waiting[str]:
        """Read a tool's name. Empty if there is none."""
        yield from self._source.space()
        for name in self._names:
            if (yield from self._source.has(name)):
                return self._source.take(len(name))
        return ""

    def _id(self) -> Waiting[str]:
        found = ""
        while _ID.match((yield from self._source.char())):
            found += self._source.take(1)
        return found

    def _arguments(self, name: str, call_id: str, behind: Sequence[str | Slot]) -> Waiting[None]:
        """Read arguments, and the literals and slots `behind` them."""
        after, *others = [each if isinstance(each, str) else "" for each in behind] or [""]
        self._source.unmark()
        self._begin(name, call_id)
        if self._form.members is None:
            is_whole = yield from read_json(self._source, self._argue)
            yield from self._source.takes("\n" + after)
        else:
            reader = MemberReader(self._source, self._form.members, after, self._tools[name])
            is_whole = yield from reader.read(self._argue)
        for literal in others:
            if literal:
                yield from self._source.takes("\n" + literal)
            else:
                yield from self._id()  # too late to be the call's: it has begun
        self._end(is_whole)

    def _object(self, envelope: Envelope) -> Waiting[bool]:
        """Read a call that is a JSON object, and the literal behind it. Arguments before the name
        wait for it."""
        name, early = "", ""
        is_whole: bool | None = None
        is_open = yield from self._source.takes("\n{")
        while is_open and (key := (yield from self._key())):
            if key == envelope.arguments and name and is_whole is None:
                is_whole = yield from self._named(name)
            elif key == envelope.arguments and not name:
                early = yield from self._json()
            elif key == envelope.name and not name:
                name = _string((yield from self._json()))
                if name not in self._tools:
                    return False
                is_whole = self._whole(name, early) if early else None
            else:
                yield from self._json()
        if is_whole is None:
            return False
        self._end(is_whole)
        yield from self._source.takes("\n" + envelope.after)
        return True

    def _key(self) -> Waiting[str]:
        """Read an object's next key and the colon, or its end. Empty without one."""
        if (yield from self._source.takes("\n}")):
            return ""
        yield from self._source.takes("\n,")
        yield from self._source.space()
        key = _string((yield from self._json()))
        return key if (yield from self._source.takes("\n:\n")) else ""

    def _json(self) -> Waiting[str]:
        pieces: list[str] = []
        yield from copy_json(self._source, pieces.append)
        return "".join(pieces)

    def _named(self, name: str) -> Waiting[bool]:
        """Read arguments behind their name: an object, or one as a string."""
        if (yield from self._source.char()) != "{":
            return self._whole(name, (yield from self._json()))
        self._source.unmark()
        self._begin(name, "")
        return (yield from read_json(self._source, self._argue))

    def _whole(self, name: str, arguments: str) -> bool:
        """Say a call with arguments that have been read. True if they are an object."""
        arguments = _string(arguments) or arguments
        self._source.unmark()
        self._begin(name, "")
        self._argue(arguments)
        return is_object(arguments)


def _string(text: str) -> str:
    """The string that a JSON text is. Empty for any other."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


@cache
def envelope_of(call: tuple[str | Slot, ...]) -> Envelope | None:
    """The envelope of a call, if a JSON object is all that stands between its literals."""
    text = "".join(p if isinstance(p, str) else _stand_in(p.slot) for p in call)
    text = text.replace(_stand_in("arguments"), f'"{_stand_in("arguments")}"')
    start = text.find("{")
    if start < 0:
        return None
    try:
        found, end = json.JSONDecoder().raw_decode(text, start)
    except ValueError:
        return None
    places = {value: key for key, value in found.items() if isinstance(value, str)}
    names = [places.get(_stand_in(slot)) for slot in ("name", "arguments")]
    if names[0] is None or names[1] is None:
        return None
    return Envelope(text[:start], names[0], names[1], text[end:])


def _stand_in(slot: str) -> str:
    return f"<{slot}>"
