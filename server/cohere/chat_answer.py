"""From text pieces to Cohere's answers and events."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from server.generation.choice import Choice
from server.generation.generation import Generation
from server.generation.stream import AnswerForm
from server.generation.text_piece import ScoredToken, TextPiece
from server.http.answers import event
from server.schemas.cohere.chat_request import (
    CohereChat,
    CohereChatEvent,
    CohereFinish,
    CohereMessage,
    CohereText,
    CohereUsage,
    ContentDelta,
    EventDelta,
    LogprobItem,
    MessageDelta,
    TokenUnits,
)
from server.schemas.common import CompletionUsage
from server.service.service import Model
from server.service.token_text import TokenText

_encode = msgspec.json.Encoder().encode


class CohereForm(AnswerForm):
    """One answer of `/v2/chat`."""

    def __init__(self, answer_id: str, model: Model, *, logprobs: bool) -> None:
        self._id = answer_id
        self._text = TokenText(model.token_bytes, mark="")
        self._logprobs = logprobs

    async def whole(self, pieces: Sequence[TextPiece], generation: Generation) -> CohereChat:
        (piece,) = pieces
        items = [self._item(self._text[token.id], [token]) for token in piece.tokens]
        return CohereChat(
            id=self._id,
            finish_reason=_finish(generation.choices[0]),
            message=CohereMessage(content=[CohereText(text=piece.text)]),
            usage=_usage(generation.usage()),
            logprobs=items if self._logprobs else UNSET,
        )

    def begin(self) -> bytes:
        message = MessageDelta(role="assistant", content=[])
        content = MessageDelta(content=ContentDelta(type="text", text=""))
        start = CohereChatEvent(
            type="message-start", id=self._id, delta=EventDelta(message=message)
        )
        return _event(start) + _event(
            CohereChatEvent(type="content-start", index=0, delta=EventDelta(message=content))
        )

    async def events(self, pieces: Sequence[TextPiece], generation: Generation) -> bytes:
        told = (piece for piece in pieces if piece.text or piece.tokens)
        return b"".join(_event(self._delta(piece)) for piece in told)

    def end(self, generation: Generation) -> bytes:
        finish, usage = _finish(generation.choices[0]), _usage(generation.usage())
        delta = EventDelta(finish_reason=finish, usage=usage)
        return _event(CohereChatEvent(type="content-end", index=0)) + _event(
            CohereChatEvent(type="message-end", id=self._id, delta=delta)
        )

    def _delta(self, piece: TextPiece) -> CohereChatEvent:
        message = MessageDelta(content=ContentDelta(text=piece.text))
        item: LogprobItem | UnsetType = UNSET
        if self._logprobs:
            item = self._item(piece.text, piece.tokens)
        return CohereChatEvent(
            type="content-delta", index=0, delta=EventDelta(message=message), logprobs=item
        )

    def _item(self, text: str, tokens: Sequence[ScoredToken]) -> LogprobItem:
        return LogprobItem(
            text=text,
            token_ids=[token.id for token in tokens],
            logprobs=[token.logprob or 0.0 for token in tokens],
        )


def _event(data: CohereChatEvent) -> bytes:
    """With its type also as the name of the event."""
    return b"event: " + data.type.encode() + b"\n" + event(_encode(data))


def _finish(choice: Choice) -> CohereFinish:
    if choice.met_stop_string:
        return "STOP_SEQUENCE"
    match choice.finish_reason:
        case "length":
            return "MAX_TOKENS"
        case "timeout":
            return "TIMEOUT"
        case _:
            return "COMPLETE"


def _usage(usage: CompletionUsage) -> CohereUsage:
    units = TokenUnits(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
    cached = usage.prompt_tokens_details.cached_tokens
    return CohereUsage(billed_units=units, tokens=units, cached_tokens=cached)
