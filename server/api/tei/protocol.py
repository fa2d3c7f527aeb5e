"""The bodies, answers and errors of Hugging Face's text-embeddings-inference (TEI), with a
`model`."""

from collections.abc import Mapping
from functools import partial
from typing import Literal

import msgspec
from fastapi import Response

from engine_core.messages import Tokenization
from engine_core.refusal import ErrorCode, RefusalError
from server.api import declaration
from server.errors import ErrorBody
from server.http.answers import ErrorAnswer
from server.schemas.common import Count, TextOrIds
from server.service.endpoint import OWN_ERRORS, Errors, operation
from server.service.service import Model


class TextOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How texts are cut."""

    truncate: bool | None = None
    """Truncate what is too long, which otherwise is an error; of a pair only the second text.
    Default: false."""
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = None
    """The side from which tokens are removed; also capitalised. Default: `"right"`."""


class EmbedTokensRequest(TextOptions, kw_only=True, frozen=True):
    """A request of `/embed_all` or `/embed_sparse`."""

    """Example: {"inputs": "Water."}"""

    inputs: TextOrIds
    """As `input` of [embeddings](#post-v1embeddings). At most 4,194,304 numbers for `/embed_all`,
    2,097,152 entries of two for `/embed_sparse`, which takes a model with SPLADE pooling."""
    prompt_name: str | None = None
    """Not for pairs: as in [embeddings](#post-v1embeddings). Default: the model's."""
    model: str | None = None
    """Default: the only one that fits."""


class EmbedRequest(EmbedTokensRequest, kw_only=True, frozen=True):
    """A request of `/embed`."""

    """Example: {"inputs": ["The cat sat on the mat.", "Interest rates rose."]}"""

    normalize: bool | None = None
    """Vectors of length 1; false: vectors before the last `Normalize`. Default: true."""
    dimensions: Count | None = None
    """As in [embeddings](#post-v1embeddings). Default: the model's."""


class SimilarityInputs(msgspec.Struct, kw_only=True, frozen=True):
    source_sentence: str
    """The sentence that the others are compared with."""
    sentences: list[str]
    """At least one, at most 2048."""


class SimilarityParameters(TextOptions, kw_only=True, frozen=True):
    prompt_name: str | None = None
    """The name of a prompt of the model, put before each sentence."""


class SimilarityRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request of `/similarity`."""

    """Example: {"inputs": {"sentences": ["A cat was sitting.", "Interest rates rose."],
    "source_sentence": "The cat sat on the mat."}}"""

    inputs: SimilarityInputs
    """`source_sentence`, a string, and `sentences`, strings: at least one, at most 2048."""
    parameters: SimilarityParameters | None = None
    """An object with `truncate`, `truncation_direction` and `prompt_name`."""
    model: str | None = None
    """Default: the only one that fits."""


class PredictRequest(TextOptions, kw_only=True, frozen=True):
    """A request of `/predict`: a text, a pair of texts, or a list of lists of one or two texts."""

    """Example: {"inputs": [["What a day!"], ["Is it open?", "The shop opens at nine."]],
    "truncate": true}"""

    inputs: str | list[str | list[str]]
    """A text, a pair of texts, or a list of at most 1000 lists with one or two texts."""
    raw_scores: bool | None = None
    """Logits instead of probabilities. Default: false."""
    model: str | None = None
    """Default: the only one that fits."""


class RerankTextsRequest(TextOptions, kw_only=True, frozen=True):
    """A request of `/rerank` in TEI's form."""

    """Example: {"query": "What do pandas eat?", "texts": ["Paris is the capital of France.", "The
    giant panda lives on bamboo."]}"""

    query: str
    """The text for which the others are scored."""
    texts: list[str]
    """At least one, at most 1000."""
    raw_scores: bool | None = None
    """Logits instead of probabilities. Default: false."""
    return_text: bool | None = None
    """Return each text. Default: false."""
    model: str | None = None
    """Default: the only one that fits."""


class TokenizeTextsRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request of `/tokenize` in TEI's form: a text, or texts."""

    """Example: {"inputs": "Café?"}"""

    inputs: str | list[str]
    """At most 2048; beside `prompt` or `messages`, which are [our own](#post-tokenize), refused."""
    add_special_tokens: bool | None = None
    """Default: true."""
    prompt_name: str | None = None
    """As in [embeddings](#post-v1embeddings). Default: the model's."""
    model: str | None = None
    """Default: the only one that fits."""


class DecodeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A request of `/decode`: the token ids of a text, or of texts."""

    """Example: {"ids": [[101, 7668, 102], [2300]]}"""

    ids: list[int | list[int]]
    """Each within the vocabulary; at most 2048 lists."""
    skip_special_tokens: bool | None = None
    """Leave special tokens out of the text. Default: true."""
    model: str | None = None
    """Default: the only one that fits."""


class SimpleToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of a text, and its place there."""

    id: int
    """The token's id."""
    text: str
    """The token's text."""
    special: bool
    """Whether it is a special token."""
    start: int | None
    stop: int | None
    """Where it begins and ends in the text, in bytes; null for a special token."""


class Prediction(msgspec.Struct, frozen=True):
    score: float
    """The label's or the text's probability, or its logit with `raw_scores`."""
    label: str
    """The label's name."""


class SparseValue(msgspec.Struct, frozen=True):
    index: int
    """The token's id."""
    value: float
    """Its weight, above 0."""


class Rank(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One text's score."""

    index: int
    """Number of the text in the request."""
    text: str | None = None
    """The text, if `return_text` asks for it."""
    score: float
    """The label's or the text's probability, or its logit with `raw_scores`."""


class EmbeddingType(msgspec.Struct, frozen=True):
    pooling: str
    """How vectors are pooled: `cls`, `mean`, `last_token`, `splade`, or several joined by `+`."""


class ClassifierType(msgspec.Struct, frozen=True):
    id2label: dict[str, str]
    """The labels by number."""
    label2id: dict[str, int]
    """The numbers by label."""


class ModelType(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The kind of the model: one of three."""

    embedding: EmbeddingType | None = None
    """There if the model is an embedder."""
    classifier: ClassifierType | None = None
    """There if it is a classifier with several labels."""
    reranker: ClassifierType | None = None
    """There if it is a classifier with one label."""


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/info`: the model behind TEI's endpoints, and the limits of a request."""

    model_id: str
    """The first of the model's names."""
    model_sha: str | None = None
    """Always null."""
    model_dtype: str
    """The type of numbers that it is computed in."""
    served_model_name: str
    """The first of the model's names."""
    model_type: ModelType
    """The task of the model."""
    max_concurrent_requests: int
    """Requests in flight at most; more get 429."""
    max_input_length: int
    """Tokens of an input at most, special tokens included."""
    max_batch_tokens: int
    """Tokens of a step at most."""
    max_batch_requests: int | None = None
    """Always null: only tokens limit a step."""
    max_client_batch_size: int
    """Inputs of a request at most."""
    auto_truncate: bool = False
    """Always false: a request says whether texts are truncated."""
    tokenization_workers: int = 1
    """Always 1."""
    version: str
    """The daemon's version."""
    sha: str | None = None
    docker_label: str | None = None
    """Always null."""


TEIErrorType = Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class TEIError(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: str
    """The fault, in a sentence."""
    error_type: TEIErrorType
    """The kind of error, in TEI's words."""


_KINDS: Mapping[ErrorCode, tuple[int, TEIErrorType]] = {
    "invalid_request": (422, "Validation"),
    "model_not_found": (422, "Validation"),
    "context_length_exceeded": (413, "Validation"),
    "too_large": (413, "Validation"),
    "body_too_large": (413, "Validation"),
    "unsupported_encoding": (415, "Validation"),
    "overloaded": (429, "Overloaded"),
    "not_ready": (503, "Unhealthy"),
    "unhealthy": (503, "Unhealthy"),
    "draining": (503, "Unhealthy"),
}
_BACKEND: tuple[int, TEIErrorType] = (424, "Backend")


class EmptyBatchError(RefusalError):
    """A request with nothing in it."""


def empty_batch(field: str) -> EmptyBatchError:
    """The refusal of a request whose `field` is empty."""
    return EmptyBatchError("invalid_request", f"`{field}` cannot be empty", field)


def _answer(error: RefusalError) -> Response:
    status, kind = _KINDS.get(error.code, _BACKEND)
    if isinstance(error, EmptyBatchError):
        status, kind = 400, "Empty"
    body = msgspec.json.encode(TEIError(error.message, kind))
    return ErrorAnswer(error, status=status, body=body)


_STATUSES = sorted({400, _BACKEND[0], *(status for status, _ in _KINDS.values())})
ERRORS = Errors(TEIError, dict.fromkeys(_STATUSES, "TEI's error"), _answer)
EITHER_ERRORS = Errors(ErrorBody | TEIError, {**ERRORS.statuses, **OWN_ERRORS.statuses})
"""Those of a path whose bodies are our own or TEI's."""
answers = partial(declaration.answers, errors=ERRORS)
reads = partial(declaration.reads, errors=ERRORS)
described = partial(operation, errors=ERRORS)


def side(options: TextOptions) -> Literal["left", "right"]:
    return "left" if options.truncation_direction in ("left", "Left") else "right"


def whole_cut(model: Model, options: TextOptions) -> Tokenization:
    """The tokenization that cuts to the model's length if the request permits it."""
    limit = model.max_model_len if options.truncate else None
    return Tokenization(truncate_to=limit, truncation_side=side(options))
