"""Ids of earlier calls, in the form that a template takes."""

import hashlib
import re
from collections.abc import Sequence

from engine_core.turn_format import IdForm
from server.templates.protocol import Message

_NINE = re.compile(r"[a-zA-Z0-9]{9}")


def with_ids_of(form: IdForm, messages: Sequence[Message]) -> list[Message]:
    """The messages with ids of this form. All calls have ids, and results keep to them."""
    if form == "any":
        return [*messages]
    ids: dict[str, str] = {}
    count = 0
    shaped: list[Message] = []
    for message in messages:
        own = dict(message)
        if calls := message.get("tool_calls"):
            ids |= {call["id"]: _id(form, call, n) for n, call in enumerate(calls, count)}
            count += len(calls)
            own["tool_calls"] = [{**call, "id": ids[call["id"]]} for call in calls]
        if message["role"] == "tool":
            own["tool_call_id"] = ids[message["tool_call_id"]]
        shaped.append(own)
    return shaped


def _id(form: IdForm, call: Message, number: int) -> str:
    """The id of a call, the conversation's `number`th. One of the form is kept."""
    own, name = call["id"], call["function"]["name"]
    if form == "functions.name:index":
        kept = re.fullmatch(rf"functions\.{re.escape(name)}:\d+", own)
        return own if kept else f"functions.{name}:{number}"
    if _NINE.fullmatch(own):
        return own
    # The same at every turn, for the prefix cache.
    return hashlib.sha256(own.encode()).hexdigest()[:9]
