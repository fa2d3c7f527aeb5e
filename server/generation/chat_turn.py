"""A turn that has been read, in the shapes of a chat's answer: its message, or deltas of one."""

import hashlib
from collections.abc import Iterator, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from engine_core.turn_format import IdForm
from server.generation.choice import TextPiece
from server.generation.plan import TurnReading
from server.schemas.chat import (
    AssistantMessage,
    CalledFunction,
    CalledTool,
    ChatFinishReason,
    Delta,
)
from server.turns.turn_parser import (
    ArgumentsDelta,
    CallBegin,
    CallEnd,
    Event,
    ReasoningDelta,
    TextDelta,
    whole_calls,
)


class CallIds:
    """The calls of an answer, with ids in the form that the model's history takes. An id that the
    model wrote stays."""

    def __init__(self, answer_id: str, turn: TurnReading | None) -> None:
        """Other ids than the model's are unique because `answer_id` is."""
        self._answer = answer_id.rpartition("-")[2]
        self._form: IdForm = "any" if turn is None else turn.form.ids

    def calls(self, piece: TextPiece) -> list[CalledTool]:
        """The whole calls of a choice in one piece."""
        whole = whole_calls(piece.events)
        return [self.call(begin, piece.index, arguments) for begin, arguments in whole]

    def call(self, begin: CallBegin, choice: int, arguments: str) -> CalledTool:
        """A call of the choice of this number, as far as it is known."""
        function = CalledFunction(name=begin.name, arguments=arguments)
        return CalledTool(id=self.id(begin, choice), type="function", function=function)

    def id(self, begin: CallBegin, choice: int) -> str:
        """The id of a call of the choice of this number."""
        if self._form == "functions.name:index":
            return f"functions.{begin.name}:{begin.id or begin.number}"
        # A number alone would come again in the next turn.
        if begin.id and not begin.id.isdigit():
            return begin.id
        unique = f"call_{self._answer}_{choice}_{begin.number}"
        if self._form == "nine letters":
            return hashlib.sha256(unique.encode()).hexdigest()[:9]
        return unique


class ChatTurn:
    """The messages and deltas of one answer's choices. `as_function`: the request has `functions`,
    and gets one call in place of a list."""

    def __init__(self, ids: CallIds, *, as_function: bool) -> None:
        self._ids = ids
        self._as_function = as_function

    def finish_reason(self, piece: TextPiece) -> ChatFinishReason | None:
        if piece.finish_reason != "stop" or not piece.has_called:
            return piece.finish_reason
        return "function_call" if self._as_function else "tool_calls"

    def message(self, piece: TextPiece, echo: str) -> AssistantMessage:
        """A choice in one piece, its text behind `echo`."""
        text = echo + piece.text
        if not piece.events:
            return AssistantMessage(content=text)
        calls = self._ids.calls(piece)
        reasoning = reasoning_of(piece.events) or UNSET
        return AssistantMessage(
            content=None if calls and not text else text,
            reasoning_content=reasoning,
            reasoning=reasoning,
            tool_calls=UNSET if self._as_function or not calls else calls,
            function_call=calls[0].function if self._as_function and calls else UNSET,
        )

    def deltas(self, piece: TextPiece) -> list[Delta]:
        """The additions of a piece's events to its message."""
        return [*self._deltas(piece)]

    def _deltas(self, piece: TextPiece) -> Iterator[Delta]:
        for event in piece.events:
            match event:
                case TextDelta(text):
                    yield Delta(content=text)
                case ReasoningDelta(text):
                    yield Delta(reasoning_content=text, reasoning=text)
                case CallBegin(number):
                    call = self._ids.call(event, piece.index, "")
                    yield from self._call(replace(call, index=number), number)
                case ArgumentsDelta(number, text):
                    added = CalledTool(index=number, function=CalledFunction(arguments=text))
                    yield from self._call(added, number)
                case CallEnd():
                    pass

    def _call(self, call: CalledTool, number: int) -> Iterator[Delta]:
        if not self._as_function:
            yield Delta(tool_calls=[call])
        elif number == 0:
            yield Delta(function_call=call.function)


def reasoning_of(events: Sequence[Event]) -> str:
    """The reasoning of a turn."""
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))
