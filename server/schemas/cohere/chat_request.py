"""`/v2/chat`."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.schemas.chat import Messages
from server.schemas.common import Count, Int64
from server.schemas.response_format import PlainText, SchemaText
from server.schemas.sampling import Penalty, StopString


class CohereJson(msgspec.Struct, frozen=True, tag="json_object"):
    """Any JSON object, or one that is valid by a schema."""

    json_schema: SchemaText | UnsetType = UNSET


class CitationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How documents are cited: without effect, because there are none."""

    mode: Literal["ENABLED", "DISABLED", "FAST", "ACCURATE", "OFF"] | None = None


class CohereChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `/v2/chat`, without tools and documents. What it leaves out is as in
    `/v1/chat/completions`, where `p` is `top_p`, `k` is `top_k` and `stop_sequences` are `stop`;
    more `max_tokens` than there is room for are as many as there is."""

    messages: Messages
    model: str | None = None
    stream: bool | None = None
    max_tokens: Count | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    seed: Int64 | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    p: Annotated[float, Meta(ge=0, le=1)] | None = None
    logprobs: bool | None = None
    response_format: PlainText | CohereJson | None = None
    priority: Int64 | None = None
    citation_options: CitationOptions | None = None


CohereFinish = Literal["COMPLETE", "MAX_TOKENS", "STOP_SEQUENCE", "TIMEOUT"]


class CohereText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of an answer."""

    type: Literal["text"] = "text"
    text: str


class CohereMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The model's answer."""

    role: Literal["assistant"] = "assistant"
    content: list[CohereText]


class TokenUnits(msgspec.Struct, frozen=True, kw_only=True):
    """Exact counts, special tokens included."""

    input_tokens: int
    output_tokens: int


class CohereUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The same counts twice, and how many tokens of the prompt had been computed before."""

    billed_units: TokenUnits
    tokens: TokenUnits
    cached_tokens: int


class LogprobItem(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the text, with its tokens' ids and log-probabilities."""

    text: str
    token_ids: list[int]
    logprobs: list[float]


class CohereChat(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v2/chat`; `logprobs` has one item for each token."""

    id: str
    finish_reason: CohereFinish
    message: CohereMessage
    usage: CohereUsage
    logprobs: list[LogprobItem] | UnsetType = UNSET


class ContentDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of the text."""

    type: Literal["text"] | UnsetType = UNSET
    text: str


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What an event adds to the message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: ContentDelta | list[CohereText] | UnsetType = UNSET


class EventDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What an event adds to the answer."""

    message: MessageDelta | UnsetType = UNSET
    finish_reason: CohereFinish | UnsetType = UNSET
    usage: CohereUsage | UnsetType = UNSET


class CohereChatEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream. The message's events have the answer's `id`, the content's have the
    `index` of the content."""

    type: Literal["message-start", "content-start", "content-delta", "content-end", "message-end"]
    id: str | UnsetType = UNSET
    index: int | UnsetType = UNSET
    delta: EventDelta | UnsetType = UNSET
    logprobs: LogprobItem | UnsetType = UNSET
