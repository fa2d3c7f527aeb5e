"""The endpoints of Hugging Face's text-embeddings-inference (TEI), in its own shapes, and with a
`model`, because a daemon may have several."""

from typing import Literal

import msgspec

from server.schemas.common import Count, TextOrIds


class TextOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How texts are cut. Without `truncate` one that is too long is an error."""

    truncate: bool | None = None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None


class EmbedTokensRequest(TextOptions, kw_only=True, frozen=True):
    """A request of `/embed_all` or `/embed_sparse`."""

    inputs: TextOrIds
    prompt_name: str | None = None
    model: str | None = None


class EmbedRequest(EmbedTokensRequest, kw_only=True, frozen=True):
    """A request of `/embed`. Without `truncate` a text that is too long is an error."""

    normalize: bool | None = None
    dimensions: Count | None = None


class SimilarityInputs(msgspec.Struct, kw_only=True, frozen=True):
    """A sentence, and the sentences that it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(TextOptions, kw_only=True, frozen=True):
    """How sentences are tokenized."""

    prompt_name: str | None = None


class SimilarityRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request of `/similarity`."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None
    model: str | None = None


class PredictRequest(TextOptions, kw_only=True, frozen=True):
    """A request of `/predict`: a text, a pair of texts, or a list of lists of one or two texts."""

    inputs: str | list[str | list[str]]
    raw_scores: bool | None = None
    model: str | None = None


class RerankTextsRequest(TextOptions, kw_only=True, frozen=True):
    """A request of `/rerank` in TEI's form."""

    query: str
    texts: list[str]
    raw_scores: bool | None = None
    return_text: bool | None = None
    model: str | None = None


class TokenizeTextsRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request of `/tokenize` in TEI's form: a text, or texts."""

    inputs: str | list[str]
    add_special_tokens: bool | None = None
    prompt_name: str | None = None
    model: str | None = None


class DecodeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request of `/decode`: the token ids of a text, or of texts. Special tokens are left out
    unless `skip_special_tokens` is false."""

    ids: list[int | list[int]]
    skip_special_tokens: bool | None = None
    model: str | None = None


class SimpleToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of a text, and where in it, in bytes; a special token is nowhere in it."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Prediction(msgspec.Struct, frozen=True):
    """A label and its score."""

    score: float
    label: str


class SparseValue(msgspec.Struct, frozen=True):
    """One number of a sparse vector."""

    index: int
    value: float


class Rank(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One text's score; `index` is its position in the request, `text` only if requested."""

    index: int
    text: str | None = None
    score: float


class EmbeddingType(msgspec.Struct, frozen=True):
    """How an embedder pools."""

    pooling: str


class ClassifierType(msgspec.Struct, frozen=True):
    """A classifier's labels by number, and their numbers."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class ModelType(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One of the three."""

    embedding: EmbeddingType | None = None
    classifier: ClassifierType | None = None
    reranker: ClassifierType | None = None


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/info`: the model behind TEI's endpoints, and the limits of a request."""

    model_id: str
    model_sha: str | None = None
    model_dtype: str
    served_model_name: str
    model_type: ModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None = None
    max_client_batch_size: int
    auto_truncate: bool = False
    tokenization_workers: int = 1
    version: str
    sha: str | None = None
    docker_label: str | None = None


TEIErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class TEIError(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: str
    error_type: TEIErrorType
