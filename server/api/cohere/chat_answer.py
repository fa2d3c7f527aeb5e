"""The answers of `/v2/chat`, as Cohere has them: whole, or as events."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from server.generation.chat_turn import CallIds, reasoning_of
from server.generation.choice import Choice, TextPiece
from server.generation.generation import AnswerForm, Generation
from server.generation.plan import GenerationPlan
from server.generation.scores import ScoredToken
from server.http.answers import named_event
from server.schemas.chat import CalledFunction, CalledTool
from server.schemas.common import CompletionUsage, FinishReason
from server.service.service import Model
from server.service.token_text import TokenText
from server.turns.turn_parser import (
    ArgumentsDelta,
    CallBegin,
    CallEnd,
    Event,
    ReasoningDelta,
    TextDelta,
)

CohereFinish = Literal["COMPLETE", "MAX_TOKENS", "STOP_SEQUENCE", "TOOL_CALL", "TIMEOUT"]


class CohereText(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    text: str
    """The text; in events, what is added to it."""


class CohereThinking(msgspec.Struct, frozen=True, kw_only=True, tag="thinking"):
    thinking: str
    """The model's reasoning; in events, what is added to it."""


class CohereMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's answer."""

    role: Literal["assistant"] = "assistant"
    """Always `assistant`."""
    content: list[CohereThinking | CohereText] | UnsetType = UNSET
    """The reasoning, if any, and the text, absent beside calls if there is neither; in events, the
    part that this one begins or adds to."""
    tool_calls: list[CalledTool] | UnsetType = UNSET
    """Calls of tools, if there are any; in events, the call that this one begins or adds to."""


class TokenUnits(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    """Tokens of the prompt, special tokens included."""
    output_tokens: int
    """Generated tokens."""


class CohereUsage(msgspec.Struct, frozen=True, kw_only=True):
    billed_units: TokenUnits
    """Equal to `tokens`."""
    tokens: TokenUnits
    """Tokens that were read and written."""
    cached_tokens: int
    """Prompt tokens that were in the prefix cache already."""


class LogprobItem(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the text, with its tokens' ids and log-probabilities."""

    text: str
    """The tokens' text."""
    token_ids: list[int]
    """The tokens' ids."""
    logprobs: list[float]
    """Natural logarithm of each token's probability."""


class CohereChat(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v2/chat`. `logprobs` has one item for each token."""

    id: str
    """Unique name of the request."""
    finish_reason: CohereFinish
    """`COMPLETE`, `TOOL_CALL` at an end with calls, `MAX_TOKENS`, `STOP_SEQUENCE`, or `TIMEOUT` at
    the server's longest time."""
    message: CohereMessage
    """The answer."""
    usage: CohereUsage
    """Counts of tokens."""
    logprobs: list[LogprobItem] | UnsetType = UNSET
    """An entry for each token, if requested."""


class ContentDelta(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["text", "thinking"] | UnsetType = UNSET
    """Which of the forms this is."""
    text: str | UnsetType = UNSET
    """The text; in events, what is added to it."""
    thinking: str | UnsetType = UNSET
    """The model's reasoning; in events, what is added to it."""


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """An event's addition to the message."""

    role: Literal["assistant"] | UnsetType = UNSET
    """Always `assistant`."""
    content: ContentDelta | list[CohereThinking | CohereText] | UnsetType = UNSET
    """The reasoning, if any, and the text, absent beside calls if there is neither; in events, the
    part that this one begins or adds to."""
    tool_calls: CalledTool | UnsetType = UNSET
    """Calls of tools, if there are any; in events, the call that this one begins or adds to."""


class EventDelta(msgspec.Struct, frozen=True, kw_only=True):
    """An event's addition to the answer."""

    message: MessageDelta | UnsetType = UNSET
    """The addition to the message."""
    finish_reason: CohereFinish | UnsetType = UNSET
    """Why the answer ends, in the last event."""
    usage: CohereUsage | UnsetType = UNSET
    """Counts of tokens, in the last event."""


CohereEventType = Literal[
    "message-start",
    "content-start",
    "content-delta",
    "content-end",
    "tool-call-start",
    "tool-call-delta",
    "tool-call-end",
    "message-end",
]


class CohereChatEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    type: CohereEventType
    """The event's name: what begins, goes on or ends."""
    id: str | UnsetType = UNSET
    """Unique name of the request, in the first and the last event."""
    index: int | UnsetType = UNSET
    """Number of the part, or of the call, from 0."""
    delta: EventDelta | UnsetType = UNSET
    """The event's addition."""
    logprobs: LogprobItem | UnsetType = UNSET
    """Log-probabilities of the tokens that it comes from, if requested."""


_encode = msgspec.json.Encoder().encode
_FINISH: Mapping[FinishReason, CohereFinish] = {
    "stop": "COMPLETE",
    "length": "MAX_TOKENS",
    "timeout": "TIMEOUT",
}
_Part = Literal["text", "thinking"]


class CohereForm(AnswerForm):
    """One answer of `/v2/chat`."""

    def __init__(self, answer_id: str, model: Model, plan: GenerationPlan) -> None:
        self._id = answer_id
        self._text = TokenText(model.token_bytes, mark="")
        self._logprobs = plan.logprobs is not None
        self._ids = CallIds(answer_id, plan.turn)
        self._open: _Part | None = None  # the part of the content that is being streamed
        self._parts = 0  # that have begun
        self._has_called = False

    async def whole(self, pieces: Sequence[TextPiece], generation: Generation) -> CohereChat:
        (piece,) = pieces
        self._has_called = piece.has_called
        items = [self._item(self._text[token.id], [token]) for token in piece.tokens]
        return CohereChat(
            id=self._id,
            finish_reason=self._finish(generation.choices[0]),
            message=self._message(piece),
            usage=_usage(generation.usage()),
            logprobs=items if self._logprobs else UNSET,
        )

    def begin(self) -> bytes:
        message = MessageDelta(role="assistant", content=[])
        return _event(
            CohereChatEvent(type="message-start", id=self._id, delta=EventDelta(message=message))
        )

    async def events(self, pieces: Sequence[TextPiece], generation: Generation) -> bytes:
        return b"".join(map(_event, chain.from_iterable(map(self._of_piece, pieces))))

    async def end(self, generation: Generation) -> bytes:
        # As Cohere's, an answer without anything has a part of text.
        closing = [] if self._parts or self._has_called else [*self._begun("text")]
        closing += self._ended()
        finish, usage = self._finish(generation.choices[0]), _usage(generation.usage())
        delta = EventDelta(finish_reason=finish, usage=usage)
        last = CohereChatEvent(type="message-end", id=self._id, delta=delta)
        return b"".join(map(_event, [*closing, last]))

    def _message(self, piece: TextPiece) -> CohereMessage:
        content: list[CohereThinking | CohereText] = []
        if thinking := reasoning_of(piece.events):
            content.append(CohereThinking(thinking=thinking))
        if piece.text or not (thinking or piece.has_called):
            content.append(CohereText(text=piece.text))
        calls = self._ids.calls(piece)
        return CohereMessage(content=content or UNSET, tool_calls=calls or UNSET)

    def _of_piece(self, piece: TextPiece) -> list[CohereChatEvent]:
        """The events of a piece, whose tokens come with the last."""
        self._has_called = piece.has_called
        if not (piece.text or piece.events or piece.tokens):
            return []
        events = [
            event
            for read in piece.events or [TextDelta(piece.text)]
            for event in self._events(read, piece)
        ]
        if self._logprobs:
            events[-1] = replace(events[-1], logprobs=self._item(piece.text, piece.tokens))
        return events

    def _events(self, read: Event, piece: TextPiece) -> Iterator[CohereChatEvent]:
        match read:
            case TextDelta(text):
                yield from self._begun("text")
                yield self._content("content-delta", ContentDelta(text=text))
            case ReasoningDelta(text):
                yield from self._begun("thinking")
                yield self._content("content-delta", ContentDelta(thinking=text))
            case CallBegin(number):
                yield from self._ended()
                yield _of_call("tool-call-start", number, self._ids.call(read, piece.index, ""))
            case ArgumentsDelta(number, text):
                added = CalledTool(function=CalledFunction(arguments=text))
                yield _of_call("tool-call-delta", number, added)
            case CallEnd(number):
                yield CohereChatEvent(type="tool-call-end", index=number)

    def _begun(self, part: _Part) -> Iterator[CohereChatEvent]:
        """The events before a delta of such a part."""
        if part == self._open:
            return
        yield from self._ended()
        self._open = part
        self._parts += 1
        empty = ContentDelta(type=part, **{part: ""})
        yield self._content("content-start", empty)

    def _ended(self) -> Iterator[CohereChatEvent]:
        """The end of the part that is open, if one is."""
        if self._open is not None:
            self._open = None
            yield CohereChatEvent(type="content-end", index=self._parts - 1)

    def _content(self, kind: CohereEventType, added: ContentDelta) -> CohereChatEvent:
        delta = EventDelta(message=MessageDelta(content=added))
        return CohereChatEvent(type=kind, index=self._parts - 1, delta=delta)

    def _finish(self, choice: Choice) -> CohereFinish:
        if self._has_called and choice.finish_reason == "stop":
            return "TOOL_CALL"
        return "STOP_SEQUENCE" if choice.stop_string else _FINISH[choice.finish_reason or "stop"]

    def _item(self, text: str, tokens: Sequence[ScoredToken]) -> LogprobItem:
        return LogprobItem(
            text=text,
            token_ids=[token.id for token in tokens],
            logprobs=[token.logprob or 0.0 for token in tokens],
        )


def _of_call(kind: CohereEventType, number: int, call: CalledTool) -> CohereChatEvent:
    delta = EventDelta(message=MessageDelta(tool_calls=call))
    return CohereChatEvent(type=kind, index=number, delta=delta)


def _event(data: CohereChatEvent) -> bytes:
    """With its type also as the name of the event."""
    return named_event(data.type, _encode(data))


def _usage(usage: CompletionUsage) -> CohereUsage:
    units = TokenUnits(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
    cached = usage.prompt_tokens_details.cached_tokens
    return CohereUsage(billed_units=units, tokens=units, cached_tokens=cached)
