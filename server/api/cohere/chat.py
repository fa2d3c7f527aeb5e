"""`/v2/chat`: a conversation's next message, as Cohere answers."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from fastapi import Request, Response
from msgspec import UNSET, Meta, UnsetType

from engine_core.refusal import RefusalError
from server.api.chat import chat_error, chat_plan, create_chat_completion
from server.api.declaration import answers
from server.generation.choice import Choice, TextPiece
from server.generation.generation import AnswerForm, Generation, answer
from server.generation.scores import ScoredToken
from server.http.answers import event
from server.schemas.chat import ChatRequest, Messages
from server.schemas.common import CompletionUsage, Count, FinishReason, Int64, renamed
from server.schemas.sampling import JsonObject, Penalty, PlainText, SchemaText, StopString
from server.service.endpoint import operation
from server.service.service import Model, service_of
from server.service.token_text import TokenText


class CohereJson(msgspec.Struct, frozen=True, tag="json_object"):
    json_schema: SchemaText | UnsetType = UNSET
    """The JSON schema that the text is valid by."""


class CitationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How documents are cited, which has no effect: there are none."""

    mode: Literal["ENABLED", "DISABLED", "FAST", "ACCURATE", "OFF"] | None = None
    """Without effect."""


class CohereChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `/v2/chat`, without tools and documents. `p`, `k` and `stop_sequences` are
    `top_p`, `top_k` and `stop` of `/v1/chat/completions`."""

    """Example: {"max_tokens": 12, "messages": [{"content": "What does it return?", "role":
    "user"}], "model": "penstock-demo", "temperature": 0}"""
    """Example: {"max_tokens": 2, "messages": [{"content": "What does it return?", "role": "user"}],
    "model": "penstock-demo", "stream": true, "temperature": 0}"""

    messages: Messages
    """As in [chat](#messages-chatmessage)."""
    model: str | None = None
    """A model with a [chat template](#chat-templates). Default: [the only one that
    fits](#rules-for-every-request)."""
    stream: bool | None = None
    """The answer as Cohere's events, see below. Default: false."""
    max_tokens: Count | None = None
    """1 to 2³¹ − 1; more than the context has left is the rest. Default: the rest."""
    stop_sequences: Annotated[list[StopString], Meta(max_length=16)] | None = None
    """As `stop` of [completions](#post-v1completions): at most 16, each of 1 to 1024 characters."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """0 to 2; 0 takes the likeliest token. Default: the model's."""
    seed: Int64 | None = None
    """As in [completions](#seeds)."""
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    """−2 to 2, as in [completions](#biases-and-penalties). Default: the model's."""
    k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """`top_k` of [completions](#post-v1completions), 0 to 2³¹ − 1. Default: the model's."""
    p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """`top_p` of [completions](#post-v1completions), 0 to 1. Default: the model's."""
    logprobs: bool | None = None
    """Return each token's id and log-probability. Default: false."""
    response_format: PlainText | CohereJson | None = None
    """Also `{"type": "json_object"}`, optionally with a `json_schema`: see [structured
    output](#structured-output). Default: `{"type": "text"}`."""
    priority: Int64 | None = None
    """Within [the server's range](#priorities): the lowest waiting is computed first. Default:
    0."""
    citation_options: CitationOptions | None = None
    """A `mode` of Cohere's; without effect, because there are no documents to cite."""


CohereFinish = Literal["COMPLETE", "MAX_TOKENS", "STOP_SEQUENCE", "TIMEOUT"]


class CohereText(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["text"] = "text"
    """Always `text`."""
    text: str
    """The text; in events, what is added to it."""


class CohereMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's answer."""

    role: Literal["assistant"] = "assistant"
    """Always `assistant`."""
    content: list[CohereText]
    """The parts of the text; in events, the part that this one begins or adds to."""


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
    """`COMPLETE`, `MAX_TOKENS`, `STOP_SEQUENCE`, or `TIMEOUT` at the server's longest time."""
    message: CohereMessage
    """The answer."""
    usage: CohereUsage
    """Counts of tokens."""
    logprobs: list[LogprobItem] | UnsetType = UNSET
    """An entry for each token, if requested."""


class ContentDelta(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["text"] | UnsetType = UNSET
    """Always `text`."""
    text: str
    """The text; in events, what is added to it."""


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """An event's addition to the message."""

    role: Literal["assistant"] | UnsetType = UNSET
    """Always `assistant`."""
    content: ContentDelta | list[CohereText] | UnsetType = UNSET
    """The parts of the text; in events, the part that this one begins or adds to."""


class EventDelta(msgspec.Struct, frozen=True, kw_only=True):
    """An event's addition to the answer."""

    message: MessageDelta | UnsetType = UNSET
    """The addition to the message."""
    finish_reason: CohereFinish | UnsetType = UNSET
    """Why the answer ends, in the last event."""
    usage: CohereUsage | UnsetType = UNSET
    """Counts of tokens, in the last event."""


class CohereChatEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    type: Literal["message-start", "content-start", "content-delta", "content-end", "message-end"]
    """The event's name: what begins, goes on or ends."""
    id: str | UnsetType = UNSET
    """Unique name of the request, in the first and the last event."""
    index: int | UnsetType = UNSET
    """Number of the part, which is always 0."""
    delta: EventDelta | UnsetType = UNSET
    """The event's addition."""
    logprobs: LogprobItem | UnsetType = UNSET
    """Log-probabilities of the added text, if requested."""


_encode = msgspec.json.Encoder().encode
_FINISH: Mapping[FinishReason, CohereFinish] = {
    "stop": "COMPLETE",
    "length": "MAX_TOKENS",
    "timeout": "TIMEOUT",
}
_SCHEMA, _COHERE_SCHEMA = "response_format.schema", "response_format.json_schema"


@answers(
    create_chat_completion.at("/v2/chat", "Cohere", order=21),
    operation(CohereChat, CohereChatRequest, chunk=CohereChatEvent),
)
async def chat(request: Request, body: CohereChatRequest, model: Model) -> Response:
    """Answer a conversation in Cohere's shapes, in one piece or as a stream of its events."""
    asked = _as_chat_request(body)
    form = CohereForm(service_of(request).new_id("chat"), model, logprobs=bool(body.logprobs))
    try:
        plan = await chat_plan(asked, request, model, most_tokens=body.max_tokens)
        return await answer(request, model, plan, form, stream=body.stream)
    except RefusalError as error:
        raise renamed(chat_error(error, asked), _SCHEMA, _COHERE_SCHEMA) from None


def _as_chat_request(body: CohereChatRequest) -> ChatRequest:
    """`body` as a request of `/v1/chat/completions`, without `max_tokens`."""
    form = body.response_format
    return ChatRequest(
        messages=body.messages,
        model=body.model,
        stream=body.stream,
        stop=body.stop_sequences,
        temperature=body.temperature,
        seed=body.seed,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        top_k=body.k,
        top_p=body.p,
        logprobs=body.logprobs,
        response_format=JsonObject(form.json_schema) if isinstance(form, CohereJson) else form,
        priority=body.priority,
    )


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
        item = self._item(piece.text, piece.tokens) if self._logprobs else UNSET
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
    return "STOP_SEQUENCE" if choice.met_stop_string else _FINISH[choice.finish_reason or "stop"]


def _usage(usage: CompletionUsage) -> CohereUsage:
    units = TokenUnits(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
    cached = usage.prompt_tokens_details.cached_tokens
    return CohereUsage(billed_units=units, tokens=units, cached_tokens=cached)
