"""`/pooling`, in vLLM's form."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from server.schemas.common import EncodeAnswer, EncodeRequest, KeptTokens, TextOrIds

PoolingTask = Literal["embed", "token_embed", "classify"]


class PoolingRequest(EncodeRequest, kw_only=True, frozen=True):
    """A request of `/pooling`: a text, texts, one input's token ids, or inputs' token ids.

    Without a `task`, an embedder embeds and a classifier classifies. With `use_activation` false
    vectors keep their length, and scores are logits; without it the model's modules decide.
    """

    input: TextOrIds
    task: PoolingTask | None = None
    encoding_format: Literal["float", "base64"] | None = None
    embed_dtype: Literal["float32", "float16"] | None = None
    use_activation: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: KeptTokens | None = None
    truncation_side: Literal["left", "right"] | None = None


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


class PoolingList(EncodeAnswer[Pooling], frozen=True, kw_only=True):
    """The answer of `/pooling`, in input order."""
