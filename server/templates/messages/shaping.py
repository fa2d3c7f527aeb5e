"""From a client's messages to those of which a template writes everything."""

from collections.abc import Sequence

from server.echoed import quoted
from server.templates.messages.kinds import (
    CallManner,
    Kind,
    Manner,
    Message,
    has_text,
    kinds_of,
    reasoning_name,
)
from server.templates.messages.manners import ProbedManners


class LeftOutError(Exception):
    """A template leaves out something of a message: `field` names it."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"this model's chat template leaves out {what}")
        self.field = field


def shaped_messages(messages: Sequence[Message], manners: ProbedManners) -> list[Message]:
    """The messages in the forms that a template takes. Raises LeftOutError."""
    kinds = kinds_of(messages)
    for place, (message, kind) in enumerate(zip(messages, kinds, strict=True)):
        _check(message, f"messages[{place}]", kind, manners)
    for place in manners.orders.lost_places(kinds):
        if kinds[place].has_calls or has_text(messages[place]):
            what = f"a message of role {quoted(kinds[place].role)} among messages in this order"
            raise LeftOutError(f"messages[{place}].role", what)
    return manners.shaped(messages)


def _check(message: Message, field: str, kind: Kind, manners: ProbedManners) -> None:
    """Raises LeftOutError."""
    manner, role = manners.of(kind), quoted(kind.role)
    if kind.has_calls:
        _check_calls(message, field, manner, manners.calls)
    elif manner.is_written is False and has_text(message):
        place = "first" if kind.is_first else "later"
        raise LeftOutError(f"{field}.role", f"a {place} message of role {role}")
    if manner.loses_name and message.get("name"):
        raise LeftOutError(f"{field}.name", f"names in messages of role {role}")
    if manners.loses_reasoning and (name := reasoning_name(message)) is not None:
        raise LeftOutError(f"{field}.{name}", "the reasoning of earlier answers")


def _check_calls(message: Message, field: str, manner: Manner, calls: CallManner) -> None:
    """Raises LeftOutError."""
    if calls.is_written is False:
        raise LeftOutError(f"{field}.tool_calls", "tool calls")
    if calls.loses_second and len(message["tool_calls"]) > 1:
        raise LeftOutError(f"{field}.tool_calls[1]", "all tool calls of a message but the first")
    if manner.is_written is False and has_text(message):
        what = "one of an assistant's text and the tool calls beside it"
        raise LeftOutError(f"{field}.content", what)
