"""What a template writes, found by rendering small conversations with words in the probed place."""

import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from server.templates.messages.kinds import (
    REASONING_NAMES,
    CallManner,
    Kind,
    Manner,
    Message,
    kinds_of,
    shaped_message,
)
from server.templates.messages.orders import Orders
from server.templates.messages.probe_messages import (
    FIRST,
    LATER,
    MISTAKEN,
    MORE,
    NAME,
    NO_ROLE,
    OF_CALLS,
    TELLING_CALL,
    TELLING_CALLS,
    TEXT,
    THOUGHT,
    USER,
    Place,
    message_of,
    parts,
    words_in,
)

# Of processor time. What has not been probed by then counts as written.
_SECONDS = 1.0
UNUSUAL_KINDS = 64
"""Kinds of messages with a template's own roles that are remembered."""
_NAMED_BY_THEIR_CALLS = ("tool", "function")


def _of(*roles: str) -> list[Kind]:
    return [Kind(role, is_first) for role in roles for is_first in (True, False)]


# In the order of probing: those before stand around those behind.
_USUAL = [
    *_of("user", "assistant"),
    Kind("assistant", is_first=False, has_calls=True),
    *_of("system", "tool", "developer"),
]


class _Trial(NamedTuple):
    """Whether a template writes a message, None if it refuses it, and a place where it does."""

    message: Message
    written: bool | None
    place: Place | None = None


class ProbedManners:
    """A template's manners, probed when it has been compiled; those of an unusual role, and of an
    unusual order of messages, when that first comes."""

    def __init__(self, render: Callable[[list[Message]], str]) -> None:
        """`render` writes messages as they are, and may raise anything."""
        self._render = render
        self._until = time.process_time() + _SECONDS
        self._usual = {kind: Manner(kind.role) for kind in _USUAL}
        self._unusual = lru_cache(UNUSUAL_KINDS)(self._probed)
        self.calls = CallManner()
        for kind in _USUAL:
            if kind.has_calls:
                self.calls = self._probed_calls()
            self._usual[kind] = self._probed_usual(kind)
        self.loses_reasoning = self._writes_reasoning() is False
        self._until = math.inf
        self.orders = Orders(self._prompt_of_order)

    def of(self, kind: Kind) -> Manner:
        """The manner of a kind."""
        return self._usual.get(kind) or self._unusual(kind)

    def shaped(self, messages: Sequence[Message], kinds: Sequence[Kind]) -> list[Message]:
        """Clients' messages, which are of these kinds, in the forms that the template takes."""
        return [
            shaped_message(message, self.of(kind), self.calls)
            for message, kind in zip(messages, kinds, strict=True)
        ]

    def _prompt_of_order(self, messages: Sequence[Message]) -> str:
        return self._render(self.shaped(messages, kinds_of(messages)))

    def _probed_usual(self, kind: Kind) -> Manner:
        """A developer's is that of a system where the template knows no developer."""
        manner = self._probed(kind)
        if kind.role == "developer" and not (manner.is_written and self._knows(kind)):
            system = self._usual[kind._replace(role="system")]
            return system if system.is_written else manner
        return manner

    def _knows(self, kind: Kind) -> bool:
        """Whether the template writes a role otherwise than one that nobody has."""
        role, other = kind.role, kind._replace(role=NO_ROLE)
        for place in _places(kind):
            prompt = self._prompt(message_of(kind, TEXT), place)
            if prompt is not None:
                same = self._prompt(message_of(other, TEXT), place)
                return same is None or prompt.lower() != same.lower().replace(NO_ROLE, role)
        return True

    def _probed(self, kind: Kind) -> Manner:
        places = _places(kind)
        message = self.calls.shaped(TELLING_CALL) if kind.has_calls else message_of(kind, TEXT)
        string = self._trial({**message, "content": TEXT}, places)
        places = [string.place] if string.place else places
        several = self._trial({**message, "content": parts(TEXT, MORE)}, places)
        trials = [string, several]
        if not (string.written or several.written):
            trials.append(self._trial({**message, "content": parts(TEXT)}, places))
        written = _summary(trials)
        return Manner(
            role=kind.role,
            takes_strings=bool(string.written) or not written,
            takes_parts=bool(several.written),
            is_written=written,
            loses_name=kind.role not in _NAMED_BY_THEIR_CALLS and self._loses_name(trials),
        )

    def _loses_name(self, trials: Sequence[_Trial]) -> bool:
        for trial in trials:
            if trial.place:
                return self._writes({**trial.message, "name": NAME}, trial.place) is False
        return False

    def _probed_calls(self) -> CallManner:
        """The first manner in which a template writes a call; without one, as most take calls."""
        trials: list[_Trial] = []
        for arguments_are_text in (False, True):
            for no_content in ({}, {"content": ""}, {"content": None}):
                manner = CallManner(arguments_are_text, no_content)
                trials.append(self._trial(manner.shaped(TELLING_CALL), OF_CALLS))
                if trials[-1].written:
                    two = self._trial(manner.shaped(TELLING_CALLS), OF_CALLS)
                    return manner._replace(is_written=True, loses_second=two.written is False)
        return CallManner(is_written=_summary(trials))

    def _writes_reasoning(self) -> bool | None:
        """Whether a template writes reasoning anywhere: many leave out that of earlier turns."""
        reasoning = dict.fromkeys(REASONING_NAMES, THOUGHT)
        messages = [{"role": "assistant", "content": TEXT}, TELLING_CALL]
        answer, call = self.shaped(messages, kinds_of(messages))
        trials = [self._trial(answer | reasoning, LATER), self._trial(call | reasoning, OF_CALLS)]
        return _summary(trials)

    def _trial(self, message: Message, places: Sequence[Place]) -> _Trial:
        """Look for a place in which a template writes all that `message` tells."""
        written = None
        for place in places:
            outcome = self._writes(message, place)
            if outcome:
                return _Trial(message, True, place)
            written = False if outcome is False else written
        return _Trial(message, written)

    def _writes(self, message: Message, place: Place) -> bool | None:
        prompt = self._prompt(message, place)
        if prompt is None:
            return None
        is_mistaken = any(sign in prompt.lower() for sign in MISTAKEN)
        return words_in(str(message)) <= words_in(prompt) and not is_mistaken

    def _prompt(self, message: Message, place: Place) -> str | None:
        """That of `message` as it is; None if the template refuses it."""
        if time.process_time() > self._until:
            return None
        around = [*place.before, USER, *place.after]
        messages = self.shaped(around, kinds_of(around))
        messages[len(place.before)] = message
        try:
            return self._render(messages)
        except Exception:  # a template is a program, and may raise anything
            return None


def _places(kind: Kind) -> Sequence[Place]:
    return OF_CALLS if kind.has_calls else FIRST if kind.is_first else LATER


def _summary(trials: Sequence[_Trial]) -> bool | None:
    """True if any is written; None if all are refused."""
    outcomes = {trial.written for trial in trials}
    return True if True in outcomes else False if False in outcomes else None
