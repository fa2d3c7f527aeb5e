"""The answers of `/v1/messages`, as Anthropic has them: whole, or as events."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from server.generation.chat_turn import CallIds
from server.generation.choice import TextPiece
from server.generation.generation import AnswerForm, Generation
from server.generation.plan import GenerationPlan
from server.generation.signed_reasoning import SignedReasoning
from server.http.answers import named_event
from server.schemas.common import RawObject
from server.service.service import Model
from server.turns.turn_parser import (
    ArgumentsDelta,
    CallBegin,
    CallEnd,
    Event,
    ReasoningDelta,
    TextDelta,
    whole_calls,
)

StopReason = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "model_context_window_exceeded",
]


class WrittenText(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    text: str
    """The text; empty where a stream begins it."""


class WrittenThinking(msgspec.Struct, frozen=True, kw_only=True, tag="thinking"):
    thinking: str
    """The model's reasoning; empty where a stream begins it, or if it is omitted."""
    signature: str
    """Shows the daemon that the block, when it comes back, is the model's own. It holds reasoning
    that is omitted. Signatures stay valid as long as the state folder."""


class WrittenToolUse(msgspec.Struct, frozen=True, kw_only=True, tag="tool_use"):
    id: str
    """Name of the call, for the block with its result."""
    name: str
    """The tool's name."""
    input: RawObject
    """The arguments, an object; empty where a stream begins it."""


WrittenBlock = WrittenText | WrittenThinking | WrittenToolUse


class ThinkingTokens(msgspec.Struct, frozen=True, kw_only=True):
    thinking_tokens: int
    """Tokens that came while the model's reasoning was open."""


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Exact counts of tokens."""

    input_tokens: int
    """Tokens of the prompt that were computed."""
    cache_creation_input_tokens: int = 0
    """Always 0: what is computed is cached without being asked."""
    cache_read_input_tokens: int
    """Tokens of the prompt that were in the prefix cache already."""
    output_tokens: int
    """Generated tokens."""
    output_tokens_details: ThinkingTokens | UnsetType = UNSET
    """More about the generated tokens, where the answer may hold reasoning or calls."""


class AssistantAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/messages`."""

    id: str
    """Unique name of the request."""
    type: Literal["message"] = "message"
    """Always `message`."""
    role: Literal["assistant"] = "assistant"
    """Always `assistant`."""
    model: str
    """The first of the model's names."""
    content: list[WrittenBlock]
    """Reasoning, text and calls, as they came. A call that `max_tokens` cuts is only in a
    stream."""
    stop_reason: StopReason | None
    """`end_turn`, `tool_use` at an end with calls, `stop_sequence`, `max_tokens`,
    `model_context_window_exceeded`, or `pause_turn` at the server's longest time; null where a
    stream begins."""
    stop_sequence: str | None
    """The stop sequence that ended the text, or null."""
    usage: MessageUsage
    """Counts of tokens."""


class MessageAddition(msgspec.Struct, frozen=True, kw_only=True):
    """An event's addition to a block, of one of these types, or the answer's end."""

    type: (
        Literal["text_delta", "thinking_delta", "signature_delta", "input_json_delta"] | UnsetType
    ) = UNSET
    """Which of the next four it has."""
    text: str | UnsetType = UNSET
    """More of the text."""
    thinking: str | UnsetType = UNSET
    """More of the reasoning."""
    signature: str | UnsetType = UNSET
    """The signature of the reasoning, at its end."""
    partial_json: str | UnsetType = UNSET
    """More of the arguments, which are JSON."""
    stop_reason: StopReason | UnsetType = UNSET
    stop_sequence: str | UnsetType | None = UNSET
    """As in a whole answer, at the end."""


MessageEventType = Literal[
    "message_start",
    "ping",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
]


class MessageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    type: MessageEventType
    """The event's name: what begins, goes on or ends."""
    message: AssistantAnswer | UnsetType = UNSET
    """The answer without content, where it begins."""
    index: int | UnsetType = UNSET
    """Number of the block, from 0."""
    content_block: WrittenBlock | UnsetType = UNSET
    """The block that begins, empty."""
    delta: MessageAddition | UnsetType = UNSET
    """The addition to the block, or to the answer."""
    usage: MessageUsage | UnsetType = UNSET
    """Counts of tokens, at the end."""


_encode = msgspec.json.Encoder().encode
_Kind = Literal["text", "thinking", "call"]


def _event(data: MessageEvent) -> bytes:
    return named_event(data.type, _encode(data))


class MessageForm(AnswerForm):
    """One answer of `/v1/messages`. With `omits_thinking`, reasoning is in its signature alone."""

    last = _event(MessageEvent(type="message_stop"))

    def __init__(
        self,
        answer_id: str,
        model: Model,
        plan: GenerationPlan,
        reasoning: SignedReasoning,
        *,
        omits_thinking: bool,
    ) -> None:
        self._id, self._model = answer_id, model.name
        self._most = plan.params.max_tokens
        self._ids = CallIds(answer_id, plan.turn)
        self._reasoning, self._omits = reasoning, omits_thinking
        self._open: _Kind | None = None  # the block that is being streamed
        self._thoughts: list[str] = []  # of that, if it is reasoning
        self._begun = 0  # blocks
        self._has_started = self._has_called = False

    async def whole(self, pieces: Sequence[TextPiece], generation: Generation) -> AssistantAnswer:
        (piece,) = pieces
        self._has_called = piece.has_called
        return self._answer([*self._blocks(piece)], self._end(generation), generation)

    async def events(self, pieces: Sequence[TextPiece], generation: Generation) -> bytes:
        events = [*self._started(generation)]
        for piece in pieces:
            self._has_called = piece.has_called
            text = [TextDelta(piece.text)] if piece.text else []
            for read in piece.events or text:
                events += self._events(read, piece)
        return b"".join(map(_event, events))

    async def end(self, generation: Generation) -> bytes:
        closing = [*self._started(generation), *self._closed()]
        reason, sequence = self._end(generation)
        delta = MessageAddition(stop_reason=reason, stop_sequence=sequence)
        last = MessageEvent(type="message_delta", delta=delta, usage=_usage(generation))
        return b"".join(map(_event, [*closing, last]))

    def _answer(
        self,
        content: list[WrittenBlock],
        end: tuple[StopReason | None, str | None],
        generation: Generation,
    ) -> AssistantAnswer:
        reason, sequence = end
        return AssistantAnswer(
            id=self._id,
            model=self._model,
            content=content,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=_usage(generation),
        )

    def _blocks(self, piece: TextPiece) -> Iterator[WrittenBlock]:
        """Yield the blocks of a choice in one piece."""
        whole = {begin.number: text for begin, text in whole_calls(piece.events)}
        text = [TextDelta(piece.text)] if piece.text else []
        for read in piece.events or text:
            match read:
                case TextDelta(text):
                    yield WrittenText(text=text)
                case ReasoningDelta(text):
                    shown = "" if self._omits else text
                    yield WrittenThinking(thinking=shown, signature=self._signature(text))
                case CallBegin(number) if number in whole:
                    yield self._call(read, piece, whole[number])
                case _:
                    pass

    def _call(self, begin: CallBegin, piece: TextPiece, arguments: str = "{}") -> WrittenToolUse:
        call_id = self._ids.id(begin, piece.index)
        return WrittenToolUse(id=call_id, name=begin.name, input=Raw(arguments.encode()))

    def _signature(self, text: str) -> str:
        return self._reasoning.seal(text, whole=self._omits)

    def _started(self, generation: Generation) -> Iterator[MessageEvent]:
        """Yield what comes before all else, with the first token: only then it is known how much
        of the prompt was cached."""
        if not self._has_started:
            self._has_started = True
            message = self._answer([], (None, None), generation)
            yield MessageEvent(type="message_start", message=message)
            yield MessageEvent(type="ping")

    def _events(self, read: Event, piece: TextPiece) -> Iterator[MessageEvent]:
        match read:
            case TextDelta(text):
                yield from self._opened("text", WrittenText(text=""))
                yield self._added(MessageAddition(type="text_delta", text=text))
            case ReasoningDelta(text):
                yield from self._opened("thinking", WrittenThinking(thinking="", signature=""))
                self._thoughts.append(text)
                if not self._omits:
                    yield self._added(MessageAddition(type="thinking_delta", thinking=text))
            case CallBegin():
                yield from self._closed()
                yield from self._opened("call", self._call(read, piece))
            case ArgumentsDelta(_, text):
                yield self._added(MessageAddition(type="input_json_delta", partial_json=text))
            case CallEnd():
                yield from self._closed()

    def _opened(self, kind: _Kind, block: WrittenBlock) -> Iterator[MessageEvent]:
        """Yield the events before a delta of such a block."""
        if kind != self._open:
            yield from self._closed()
            self._open = kind
            self._begun += 1
            yield MessageEvent(
                type="content_block_start", index=self._begun - 1, content_block=block
            )

    def _closed(self) -> Iterator[MessageEvent]:
        """Yield the end of the block that is open, if one is."""
        if self._open is None:
            return
        if self._open == "thinking":
            signature = self._signature("".join(self._thoughts))
            yield self._added(MessageAddition(type="signature_delta", signature=signature))
            self._thoughts = []
        self._open = None
        yield MessageEvent(type="content_block_stop", index=self._begun - 1)

    def _added(self, delta: MessageAddition) -> MessageEvent:
        return MessageEvent(type="content_block_delta", index=self._begun - 1, delta=delta)

    def _end(self, generation: Generation) -> tuple[StopReason, str | None]:
        choice = generation.choices[0]
        stop_reason: StopReason = "end_turn"
        if choice.finish_reason == "timeout":
            stop_reason = "pause_turn"
        elif choice.finish_reason == "length":
            is_full = self._most is None or choice.tokens < self._most
            stop_reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif self._has_called:
            stop_reason = "tool_use"
        elif choice.stop_string:
            stop_reason = "stop_sequence"
        return stop_reason, choice.stop_string or None


def _usage(generation: Generation) -> MessageUsage:
    usage = generation.usage()
    cached, details = usage.prompt_tokens_details.cached_tokens, usage.completion_tokens_details
    return MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
        output_tokens_details=UNSET
        if details is UNSET
        else ThinkingTokens(thinking_tokens=details.reasoning_tokens),
    )
