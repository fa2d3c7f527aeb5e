"""A choice's text, read as an assistant's turn: its own text, reasoning, and calls of tools."""

from server.generation.plan import TurnReading
from server.generation.stop_strings import StopStrings
from server.turns.turn_parser import CallEnd, Event, TextDelta, TurnParser, add_event


class TurnText:
    """Takes generated text, and returns what of it is the turn's text, up to a stop string.

    Stop strings act within the turn's text alone. `has_called` once a call is whole.
    `reasoning_tokens` counts pieces that came while reasoning was open.
    """

    def __init__(self, reading: TurnReading, stops: StopStrings) -> None:
        self.has_called = False
        self.reasoning_tokens = 0
        self._parser = TurnParser(reading.form, reading.tools, reading.prompt_end)
        self._stops = stops
        self._events: list[Event] = []

    def push(self, added: str, *, may_end: bool = True) -> str:
        """Take a token's text. Returns the turn's text that is now certain."""
        self.reasoning_tokens += self._parser.in_reasoning
        return self._read(self._parser.feed(added), may_end=may_end)

    def flush(self, *, is_cut: bool) -> str:
        """The rest of the turn's text, once nothing can follow it. `is_cut` as in `TurnParser`."""
        text = self._read(self._parser.finish(is_cut=is_cut), may_end=True)
        return text + self._say(self._stops.flush())

    def events(self) -> list[Event]:
        """The events since the last call of this."""
        events, self._events = self._events, []
        return events

    def _read(self, events: list[Event], *, may_end: bool) -> str:
        text = ""
        for event in events:
            if self._stops.found:
                break
            if isinstance(event, TextDelta):
                text += self._say(self._stops.push(event.text, may_end=may_end))
                continue
            # What held a stop string's beginning is now followed by no text.
            text += self._say(self._stops.flush())
            add_event(self._events, event)
            if isinstance(event, CallEnd):
                self.has_called |= event.is_whole
        return text

    def _say(self, text: str) -> str:
        if text:
            add_event(self._events, TextDelta(text))
        return text
