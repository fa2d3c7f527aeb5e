"""Orders of messages that few conversations have, each probed when it first comes."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from server.templates.messages.kinds import Kind, Message
from server.templates.messages.probe_messages import message_of, word, words_in

_REMEMBERED = 64
_LETTERS = {"system": "s", "developer": "s", "user": "u", "assistant": "a", "tool": "t"}
# A system message, then a user's; tools' results behind their calls; a user's message at last.
_COMMON = re.compile("s?(?:u(?:a|ct*)*)*u")


class Orders:
    """Where a template leaves out messages because of others: a second system message, a system
    message without a user's behind it, a tool's result without a call."""

    def __init__(self, render: Callable[[Sequence[Message]], str]) -> None:
        """`render` writes clients' messages, and may raise anything."""
        self._render = render
        self._lost = lru_cache(_REMEMBERED)(self._probed)

    def lost_places(self, kinds: Sequence[Kind]) -> Sequence[int]:
        """The messages that a template leaves out of a conversation of these kinds."""
        letters = ["c" if kind.has_calls else _LETTERS.get(kind.role, "x") for kind in kinds]
        return () if _COMMON.fullmatch("".join(letters)) else self._lost(tuple(kinds))

    def _probed(self, kinds: Sequence[Kind]) -> Sequence[int]:
        messages: list[Message] = []
        calls = 0
        for place, kind in enumerate(kinds):
            calls += kind.has_calls
            messages.append(message_of(kind, word(place), calls))
        try:
            written = words_in(self._render(messages))
        except Exception:  # a template is a program, and may raise anything
            return ()
        return [place for place in range(len(kinds)) if word(place) not in written]
