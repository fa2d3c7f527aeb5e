"""`/v1/embeddings`."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.schemas.common import Count, Usage
from server.schemas.input_or_chat import InputOrChatRequest

_QUERY = ("query", "search_query", "retrieval.query")
_DOCUMENT = ("document", "passage", "search_document", "corpus", "retrieval.passage")
INPUT_TYPES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("query", "search_query"), _QUERY),
    **dict.fromkeys(("document", "search_document", "passage"), _DOCUMENT),
    **{name: (name,) for name in ("classification", "clustering")},
}
"""Kind of text -> the names under which models keep the prompt for it, the likeliest first."""

InputType = Annotated[str, Meta(extra_json_schema={"enum": list(INPUT_TYPES)})]
EmbedDtype = Literal["float32", "float16", "int8", "binary", "ubinary"]


class EmbeddingRequest(InputOrChatRequest, kw_only=True, frozen=True):
    """A request of `/v1/embeddings`: a text, texts, one input's token ids, or inputs' token ids."""

    """Example: {"input": ["The cat sat on the mat.", "Interest rates rose."]}"""
    """Example: {"embed_dtype": "ubinary", "input": "The cat sat on the mat, and then it slept all
    day long.", "truncate_prompt_tokens": 8}"""

    encoding_format: Literal["float", "base64"] | None = None
    """`base64` encodes the numbers in `embed_dtype`, little-endian. Default: `"float"`."""
    dimensions: Count | None = None
    """Only this many first numbers: see [dimensions](#dimensions-and-types). Default: the
    model's."""
    embed_dtype: EmbedDtype | None = None
    """Also `"float16"`, `"int8"`, `"binary"`, `"ubinary"`: see [types](#dimensions-and-types).
    Default: `"float32"`."""
    prompt_name: str | None = None
    """A prompt of the model to put before each text: see [prompts](#prompts). Default: the
    model's."""
    input_type: InputType | None = None
    """`"query"`, `"search_query"`, `"document"`, `"search_document"`, `"passage"`,
    `"classification"` or `"clustering"`: see [prompts](#prompts)."""
    truncation_side: Literal["left", "right"] | None = None
    """Where tokens are removed, a prompt's too, but no special ones. Default: `"right"`."""
    normalize: bool | None = None
    """True: vectors of length 1; false: vectors before the last `Normalize`, not with `int8`,
    `binary` and `ubinary`. Default: the model's."""
    use_activation: bool | None = None
    normalized: bool | None = None
    """vLLM's newer name of `normalize`, and Jina's; refused if two differ. Default: the model's."""
    truncation: bool | None = None
    """Voyage's: true is `truncate_prompt_tokens` −1 unless that is given; false beside it is
    refused. Default: false."""
    output_dimension: Count | None = None
    """Voyage's name of `dimensions`; refused if the two differ."""
    output_dtype: Literal["float", "int8", "binary", "ubinary"] | None = None
    """Voyage's name of `embed_dtype`, `"float"` for `"float32"`; refused if the two differ."""
    return_sparse: bool | None = None
    """True: `lexical_weights` beside each vector, of the same pass, from a model that has them,
    such as BGE-M3 (FlagEmbedding's name; others: 400). Default: false."""
    return_colbert_vecs: bool | None = None
    """True: likewise `colbert_vecs`, a vector for each token (FlagEmbedding's name). Default:
    false."""


_NUMBERS = {"type": "array", "items": {"type": "number"}}
Vector = Annotated[msgspec.Raw, Meta(extra_json_schema={"anyOf": [_NUMBERS, {"type": "string"}]})]
"""Numbers, or their bytes in base64."""
TokenVectors = Annotated[
    msgspec.Raw,
    Meta(extra_json_schema={"anyOf": [{"type": "array", "items": _NUMBERS}, {"type": "string"}]}),
]
"""Vectors, or the bytes of all in base64."""


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One input's vector."""

    object: str = "embedding"
    """`list` of the answer, `embedding` of an entry."""
    index: int
    """Number of the input."""
    embedding: Vector
    """The vector: numbers, or their bytes in base64 if `encoding_format` says so."""
    truncated: Literal[True] | UnsetType = UNSET
    """True if the input lost tokens; else absent."""
    lexical_weights: dict[str, float] | UnsetType = UNSET
    """With `return_sparse`: the weight of each token of the text, by its id."""
    colbert_vecs: TokenVectors | UnsetType = UNSET
    """With `return_colbert_vecs`: a vector of length 1 for each token but the first, float32, as
    lists or all in base64."""


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/v1/embeddings`, in input order."""

    object: str = "list"
    """`list` of the answer, `embedding` of an entry."""
    data: list[Embedding]
    """An entry for each input, in their order."""
    model: str
    """The first of the model's names."""
    usage: Usage
    """Counts of tokens."""
