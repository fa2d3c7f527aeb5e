"""`/v1/embeddings`."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.schemas.common import Count, EncodeRequest, KeptTokens, TextOrIds, Usage

_QUERY = ("query", "search_query", "retrieval.query")
_DOCUMENT = ("document", "passage", "search_document", "corpus", "retrieval.passage")
INPUT_TYPES: Mapping[str, tuple[str, ...]] = {
    "query": _QUERY,
    "search_query": _QUERY,
    "document": _DOCUMENT,
    "search_document": _DOCUMENT,
    "passage": _DOCUMENT,
    "classification": ("classification",),
    "clustering": ("clustering",),
}
"""Kind of text -> the names under which models keep the prompt for it, the likeliest first."""

InputType = Annotated[str, Meta(extra_json_schema={"enum": list(INPUT_TYPES)})]
EmbedDtype = Literal["float32", "float16", "int8", "binary", "ubinary"]


class EmbeddingRequest(EncodeRequest, kw_only=True, frozen=True):
    """A request of `/v1/embeddings`: a text, texts, one input's token ids, or inputs' token ids.

    Ids are taken as they are; texts get the prompt that `prompt_name` or `input_type` chooses, and
    the tokenizer's special tokens. `truncate_prompt_tokens` -1 is the model's length. `base64`
    encodes the numbers of `embed_dtype`, little-endian. `normalize`, which vLLM has renamed
    `use_activation` and Jina calls `normalized`, decides whether vectors have length 1, whatever
    the model's modules do. Jobs of a lower `priority` begin first. The last three are Voyage's
    names for `truncate_prompt_tokens` -1, `dimensions`, `embed_dtype`.
    """

    input: TextOrIds
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    embed_dtype: EmbedDtype | None = None
    prompt_name: str | None = None
    input_type: InputType | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: KeptTokens | None = None
    truncation_side: Literal["left", "right"] | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    normalized: bool | None = None
    truncation: bool | None = None
    output_dimension: Count | None = None
    output_dtype: Literal["float", "int8", "binary", "ubinary"] | None = None


Vector = Annotated[
    msgspec.Raw,
    Meta(
        extra_json_schema={
            "anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]
        }
    ),
]
"""Numbers, or their bytes in base64."""


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One input's vector. `truncated` is there, and true, where the input was cut."""

    object: str = "embedding"
    index: int
    embedding: Vector
    truncated: Literal[True] | UnsetType = UNSET


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/embeddings`, in input order."""

    object: str = "list"
    data: list[Embedding]
    model: str
    usage: Usage
