"""`/v1/embeddings`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from server.schemas.common import TextOrIds, Usage


class EmbeddingOptionsNotServed(msgspec.Struct, kw_only=True, frozen=True):
    """Options that clients know and this server does not serve: neutral values only."""

    dimensions: None = None
    truncate_prompt_tokens: None = None


class EmbeddingRequest(EmbeddingOptionsNotServed, kw_only=True, frozen=True):
    """A request of `/v1/embeddings`: a text, texts, one input's token ids, or inputs' token ids.

    Texts get the tokenizer's special tokens, ids are taken as they are. `base64` encodes
    little-endian float32.
    """

    input: TextOrIds
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One input's vector."""

    object: str = "embedding"
    index: int
    embedding: Annotated[
        msgspec.Raw,
        Meta(
            extra_json_schema={
                "anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]
            }
        ),
    ]


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/embeddings`, in input order."""

    object: str = "list"
    data: list[Embedding]
    model: str
    usage: Usage
