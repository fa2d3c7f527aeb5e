"""A parser of turns: from text in pieces to text, reasoning and calls of tools."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from engine_core.turn_format import TurnFormat
from server.turns.call_reader import CallReader
from server.turns.text_source import TextSource, Waiting


class TextDelta(NamedTuple):
    """More of the text."""

    text: str


class ReasoningDelta(NamedTuple):
    """More of the reasoning."""

    text: str


class CallBegin(NamedTuple):
    """A call of a tool, the turn's `number`th from 0 on. `id` is the model's own, if one stands
    before the arguments."""

    number: int
    name: str
    id: str


class ArgumentsDelta(NamedTuple):
    """More of a call's arguments, which are JSON."""

    number: int
    text: str


class CallEnd(NamedTuple):
    """A call's end. Not `is_whole`: its arguments are cut or malformed."""

    number: int
    is_whole: bool


class Call(NamedTuple):
    """A call of a tool."""

    name: str
    arguments: dict[str, Any]


Event = TextDelta | ReasoningDelta | CallBegin | ArgumentsDelta | CallEnd


class TurnParser:
    """Reads one turn. Its events depend on the text alone, but for the places where deltas are cut.

    It is `in_reasoning` from an opening marker that it has read to the closing one, or to a call.
    """

    def __init__(
        self, form: TurnFormat, tools: Mapping[str, Mapping[str, Any]], prompt: str = ""
    ) -> None:
        """`tools` are the schemas of arguments by name. A name that is none of theirs begins no
        call. The end of `prompt` says whether the turn begins inside reasoning."""
        self._form = form
        self._source = TextSource()
        self._events: list[Event] = []
        self._space = ""  # held back, because it is dropped before a marker
        self._drops_space = False  # behind a marker
        self._has_said = False
        self._is_cut = False
        self._count = 0
        self._readers: dict[str, list[CallReader]] = {}
        for calls in form.calls if tools else ():
            reader = CallReader(self._source, calls, tools)
            self._readers.setdefault(calls.marker, []).append(reader)
        reasoning = form.reasoning
        self.in_reasoning = reasoning is not None and reasoning.is_open_at_end_of(prompt)
        self._steps = self._turn()

    def feed(self, text: str) -> list[Event]:
        """The events that `text` completes."""
        self._source.add(text)
        return self._advance()

    def finish(self, *, is_cut: bool = False) -> list[Event]:
        """The events that remain at the end of the turn. If it `is_cut`, what may have become a
        call is no text."""
        self._is_cut = is_cut
        self._source.end()
        return self._advance()

    def _advance(self) -> list[Event]:
        next(self._steps, None)
        events, self._events = self._events, []
        return events

    def _turn(self) -> Waiting[None]:
        if self.in_reasoning:
            yield from self._reasoning()
        opening = closing = ""
        if (reasoning := self._form.reasoning) is not None:
            opening, closing = reasoning.open.strip(), reasoning.close.strip()
        markers = (opening, closing, *self._form.text_markers, *self._readers)
        while True:
            # Calls without a marker are at the beginning of the text only.
            if "" in self._readers and not self._has_said:
                yield from self._calls("")
            found = yield from self._source.until(list(filter(None, markers)), self._say)
            if not found:
                break
            if found == opening:
                yield from self._reasoning()
            elif found in self._form.text_markers or (found == closing and not self._has_said):
                self._pass_marker()
            elif found == closing or not (yield from self._calls(found)):
                self._say(found)
        if self._space and not self._drops_space:
            add_event(self._events, TextDelta(self._space))

    def _reasoning(self) -> Waiting[None]:
        """Read reasoning up to its end, or to the opening of a call."""
        assert self._form.reasoning is not None
        close = self._form.reasoning.close.strip()
        markers = [close, *filter(None, self._readers)]
        self.in_reasoning = True
        self._pass_marker()
        while found := (yield from self._source.until(markers, self._think)):
            if found == close or (yield from self._calls(found)):
                break
            self._think(found)
        self.in_reasoning = False
        self._pass_marker()

    def _calls(self, marker: str) -> Waiting[bool]:
        """Read a section of calls behind its marker. False, and nothing read, if it is none."""
        first = self._count
        for reader in self._readers[marker]:
            yield from reader.section(self._begin, self._argue, self._end)
            if self._count > first:
                break
        if self._count == first:
            if not (marker and self._is_cut and self._source.ran_out):
                return False
            self._source.take(len(self._source.rest))
        self._has_said = True
        self._pass_marker()
        return True

    def _begin(self, name: str, call_id: str) -> None:
        self.in_reasoning = False
        add_event(self._events, CallBegin(self._count, name, call_id))

    def _argue(self, text: str) -> None:
        add_event(self._events, ArgumentsDelta(self._count, text))

    def _end(self, is_whole: bool) -> None:
        add_event(self._events, CallEnd(self._count, is_whole))
        self._count += 1

    def _pass_marker(self) -> None:
        """Drop white space around a marker."""
        self._space, self._drops_space = "", True

    def _say(self, text: str) -> None:
        if body := self._body(text):
            self._has_said = True
            add_event(self._events, TextDelta(body))

    def _think(self, text: str) -> None:
        if body := self._body(text):
            add_event(self._events, ReasoningDelta(body))

    def _body(self, text: str) -> str:
        """The text without white space that may yet be dropped, and with what was held back."""
        text = text.lstrip() if self._drops_space else text
        body = text.rstrip()
        held, self._space = self._space, text[len(body) :]
        if not body:
            self._space = held + self._space
            return ""
        self._drops_space = False
        return held + body


def add_event(events: list[Event], event: Event) -> None:
    """Append an event. A delta is joined with one of its kind before it."""
    match events[-1:], event:
        case (
            ([TextDelta(text)], TextDelta(more))
            | ([ReasoningDelta(text)], ReasoningDelta(more))
            | ([ArgumentsDelta(_, text)], ArgumentsDelta(_, more))
        ):
            events[-1] = event._replace(text=text + more)
        case _:
            events.append(event)


def whole_calls(events: Sequence[Event]) -> list[tuple[CallBegin, str]]:
    """The whole calls of a turn's events, with the JSON of their arguments."""
    begun = {event.number: event for event in events if isinstance(event, CallBegin)}
    texts = dict.fromkeys(begun, "")
    for event in events:
        if isinstance(event, ArgumentsDelta):
            texts[event.number] += event.text
    whole = [event.number for event in events if isinstance(event, CallEnd) and event.is_whole]
    return [(begun[number], texts[number]) for number in whole]


def calls_of(events: Sequence[Event]) -> list[Call]:
    """The whole calls of a turn's events."""
    return [Call(begin.name, json.loads(text)) for begin, text in whole_calls(events)]
