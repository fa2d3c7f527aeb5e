"""`/pooling`, in vLLM's form."""

import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from server.schemas.common import Int64, TextOrIds, Usage

PoolingTask = Literal["embed", "token_embed", "classify"]


class PoolingRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request of `/pooling`: a text, texts, one input's token ids, or inputs' token ids.

    Without a `task`, an embedder embeds and a classifier classifies. With `use_activation` false
    vectors keep their length, and scores are logits; without it the model's modules decide.
    """

    input: TextOrIds
    model: str | None = None
    task: PoolingTask | None = None
    encoding_format: Literal["float", "base64"] | None = None
    embed_dtype: Literal["float32", "float16"] | None = None
    use_activation: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: Int64 | None = None
    cache_salt: str | None = None
    user: str | None = None


PoolingData = Annotated[
    msgspec.Raw,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"type": "array", "items": {"type": "number"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                {"type": "string"},
            ]
        }
    ),
]
"""A vector or scores, a vector for each token, or the bytes of either in base64."""


class Pooling(msgspec.Struct, frozen=True, kw_only=True):
    """One input's."""

    object: str = "pooling"
    index: int
    data: PoolingData


class PoolingList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/pooling`, in input order."""

    id: str
    object: str = "list"
    created: int = msgspec.field(default_factory=lambda: int(time.time()))
    model: str
    data: list[Pooling]
    usage: Usage
