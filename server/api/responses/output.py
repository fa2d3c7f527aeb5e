"""From a turn's events to the items of a response, and the events by which they come."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from server.api.responses.objects import (
    EventType,
    ItemStatus,
    OutputCall,
    OutputCustomCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    ResponseEvent,
)
from server.api.responses.tools import ToolName
from server.generation.chat_turn import CallIds
from server.schemas.chat import TokenLogprob
from server.turns.turn_parser import (
    ArgumentsDelta,
    CallBegin,
    CallEnd,
    Event,
    ReasoningDelta,
    TextDelta,
)


class _CustomInput(msgspec.Struct, frozen=True):
    """The arguments that the model writes for a custom tool."""

    input: str


class OutputWriter:
    """Makes `items`, and numbers the events of a stream."""

    def __init__(
        self,
        answer_id: str,
        ids: CallIds,
        names: Mapping[str, ToolName],
        sign: Callable[[str], str] | None,
    ) -> None:
        """`names` are the request's for its functions. `sign` signs reasoning."""
        self._sign = sign
        self.items: list[OutputItem] = []
        self._unique = answer_id.partition("_")[2]
        self._ids = ids
        self._names = names
        self._open: OutputItem | None = None
        self._written: list[str] = []  # of the open item
        self._scores: list[TokenLogprob] = []  # of these
        self._new_scores: list[TokenLogprob] = []  # not sent yet
        self._num_events = 0

    def event(self, kind: EventType, **fields: Any) -> ResponseEvent:
        """The next event."""
        self._num_events += 1
        return ResponseEvent(type=kind, sequence_number=self._num_events - 1, **fields)

    def add_scores(self, scores: Sequence[TokenLogprob]) -> None:
        """Add scores, which come with the next text."""
        self._new_scores += scores

    def read(self, read: Event, choice: int) -> Iterator[ResponseEvent]:
        """Take an event of the turn, and yield those of the stream."""
        match read:
            case TextDelta(text):
                if not isinstance(self._open, OutputMessage):
                    name = self._name("msg")
                    yield from self._begin(OutputMessage(id=name, status="in_progress"))
                yield self._delta("response.output_text.delta", text, self._taken_scores())
            case ReasoningDelta(text):
                if not isinstance(self._open, OutputReasoning):
                    name = self._name("rs")
                    yield from self._begin(OutputReasoning(id=name, status="in_progress"))
                yield self._delta("response.reasoning_text.delta", text)
            case CallBegin():
                yield from self._begin(self._call(read, choice))
            case ArgumentsDelta(_, text) if isinstance(self._open, OutputCall):
                yield self._delta("response.function_call_arguments.delta", text)
            case ArgumentsDelta(_, text):
                self._written.append(text)
            case CallEnd(_, is_whole):
                yield from self.end("completed" if is_whole else "incomplete")

    def end(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        """End the item that is open, if one is."""
        item, text = self._open, "".join(self._written)
        self._open = None
        match item:
            case None:
                return
            case OutputMessage():
                part = OutputText(text=text, logprobs=self._scores)
                yield self._of_part("response.output_text.done", text=text, logprobs=self._scores)
                item = replace(item, content=[part])
                yield self._of_part("response.content_part.done", part=part)
            case OutputReasoning():
                part = ReasoningText(text=text)
                yield self._of_part("response.reasoning_text.done", text=text)
                signed = UNSET if self._sign is None else self._sign(text)
                item = replace(item, content=[part], encrypted_content=signed)
                yield self._of_part("response.content_part.done", part=part)
            case OutputCall():
                yield self._of_item("response.function_call_arguments.done", arguments=text)
                item = replace(item, arguments=text)
            case OutputCustomCall():
                text = _input_of(text)
                yield self._of_item("response.custom_tool_call_input.delta", delta=text)
                yield self._of_item("response.custom_tool_call_input.done", input=text)
                item = replace(item, input=text)
        item = replace(item, status=status)
        self.items[-1] = item
        yield self.event("response.output_item.done", output_index=len(self.items) - 1, item=item)

    def _begin(self, item: OutputItem) -> Iterator[ResponseEvent]:
        yield from self.end("completed")
        self._open = item
        self._written, self._scores = [], []
        self.items.append(item)
        yield self.event("response.output_item.added", output_index=len(self.items) - 1, item=item)
        if isinstance(item, OutputMessage):
            yield self._of_part("response.content_part.added", part=OutputText(text=""))
        elif isinstance(item, OutputReasoning):
            yield self._of_part("response.content_part.added", part=ReasoningText(text=""))

    def _call(self, begin: CallBegin, choice: int) -> OutputItem:
        called = self._ids.call(begin, choice, "")
        named = self._names[begin.name]
        common: dict[str, Any] = {
            "status": "in_progress",
            "call_id": called.id,
            "namespace": UNSET if named.namespace is None else named.namespace,
            "name": named.name,
        }
        if named.is_custom:
            return OutputCustomCall(id=self._name("ctc"), input="", **common)
        return OutputCall(id=self._name("fc"), arguments="", **common)

    def _name(self, kind: str) -> str:
        return f"{kind}_{self._unique}_{len(self.items)}"

    def _taken_scores(self) -> list[TokenLogprob]:
        scores, self._new_scores = self._new_scores, []
        self._scores += scores
        return scores

    def _delta(
        self, kind: EventType, text: str, scores: list[TokenLogprob] | UnsetType = UNSET
    ) -> ResponseEvent:
        """An addition to the open item, made at once: there is one for every token."""
        self._written.append(text)
        self._num_events += 1
        return ResponseEvent(
            type=kind,
            sequence_number=self._num_events - 1,
            output_index=len(self.items) - 1,
            item_id=self.items[-1].id,
            content_index=UNSET if isinstance(self._open, OutputCall) else 0,
            delta=text,
            logprobs=scores,
        )

    def _of_part(self, kind: EventType, **fields: Any) -> ResponseEvent:
        return self._of_item(kind, content_index=0, **fields)

    def _of_item(self, kind: EventType, **fields: Any) -> ResponseEvent:
        last = self.items[-1]
        return self.event(kind, output_index=len(self.items) - 1, item_id=last.id, **fields)


def _input_of(arguments: str) -> str:
    """The text that a custom tool gets, none of arguments that are cut or malformed."""
    try:
        return msgspec.json.decode(arguments, type=_CustomInput).input
    except msgspec.MsgspecError:
        return ""
