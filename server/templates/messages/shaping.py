"""From a client's messages to those of which a template writes everything."""

from collections.abc import Sequence

from jinja2.exceptions import TemplateError

from server.errors import quoted
from server.templates.messages.kinds import (
    CallManner,
    Kind,
    Manner,
    Message,
    has_text,
    kinds_of,
    reasoning_name,
)
from server.templates.messages.manners import UNUSUAL_KINDS, ProbedManners


class LeftOutError(Exception):
    """A template leaves out something of a message: `field` names it."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"this model's chat template leaves out {what}")
        self.field = field


def shaped_messages(messages: Sequence[Message], manners: ProbedManners) -> list[Message]:
    """The messages in the forms that a template takes. Raises LeftOutError, and TemplateError for
    more kinds of messages than are probed for one conversation."""
    kinds = kinds_of(messages)
    if len(set(kinds)) > UNUSUAL_KINDS:
        raise TemplateError(f"they have more than {UNUSUAL_KINDS} roles")
    for place, (message, kind) in enumerate(zip(messages, kinds, strict=True)):
        if (left_out := _left_out(message, kind, manners)) is not None:
            field, what = left_out
            raise LeftOutError(f"messages[{place}].{field}", what)
    for place in manners.orders.lost_places(kinds):
        if kinds[place].has_calls or has_text(messages[place]):
            what = f"a message of role {quoted(kinds[place].role)} among messages in this order"
            raise LeftOutError(f"messages[{place}].role", what)
    return manners.shaped(messages, kinds)


def _left_out(message: Message, kind: Kind, manners: ProbedManners) -> tuple[str, str] | None:
    """The field that a template leaves out in every message of a kind, and a word for it."""
    manner = manners.of(kind)
    if kind.has_calls and (lost := _left_out_of_calls(message, manner, manners.calls)):
        return lost
    if manner.is_written is False and not kind.has_calls and has_text(message):
        place = "first" if kind.is_first else "later"
        return "role", f"a {place} message of role {quoted(kind.role)}"
    if manner.loses_name and message.get("name"):
        return "name", f"names in messages of role {quoted(kind.role)}"
    if manners.loses_reasoning and (name := reasoning_name(message)) and message[name]:
        return name, "the reasoning of earlier answers"
    return None


def _left_out_of_calls(
    message: Message, manner: Manner, calls: CallManner
) -> tuple[str, str] | None:
    if calls.is_written is False:
        return "tool_calls", "tool calls"
    if calls.loses_second and len(message["tool_calls"]) > 1:
        return "tool_calls[1]", "all tool calls of a message but the first"
    if manner.is_written is False and has_text(message):
        return "content", "an assistant's text or the tool calls beside it"
    return None
