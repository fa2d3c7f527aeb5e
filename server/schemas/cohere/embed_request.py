"""`/v1/embed` and `/v2/embed`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from server.schemas.common import Count, Int64
from server.schemas.embeddings import InputType, Vector
from server.schemas.rerank import APIVersion, InputTokens

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]


class EmbedPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an input."""

    type: Literal["text"]
    text: str


class EmbedInput(msgspec.Struct, frozen=True, kw_only=True):
    """One input: its parts, joined by line breaks."""

    content: Annotated[list[EmbedPart], Meta(min_length=1)]


class CohereEmbedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `/v1/embed` or `/v2/embed`: `texts`, or `inputs` in parts.

    `input_type` chooses the checkpoint's prompt. `truncate` says at which end an input loses tokens
    beyond `max_tokens`, special tokens included, or beyond the model's length; NONE refuses it.
    """

    texts: Annotated[list[str], Meta(min_length=1)] | None = None
    inputs: Annotated[list[EmbedInput], Meta(min_length=1)] | None = None
    model: str | None = None
    input_type: InputType | None = None
    embedding_types: Annotated[list[EmbeddingType], Meta(min_length=1)] | None = None
    output_dimension: Count | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    max_tokens: Count | None = None
    priority: Int64 | None = None


class EmbedMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`warnings` names the inputs that were cut."""

    api_version: APIVersion
    billed_units: InputTokens
    warnings: list[str] = []


class CohereEmbeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: a vector for each text, in order; by type, each type has such a list."""

    id: str
    response_type: Literal["embeddings_floats", "embeddings_by_type"]
    embeddings: list[Vector] | dict[EmbeddingType, list[Vector]]
    texts: list[str]
    meta: EmbedMeta
