"""The bodies, answers and errors of Hugging Face's text-embeddings-inference (TEI), and with a
`model`, because a daemon may have several."""

import functools
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from fastapi import Response
from msgspec import Raw
from starlette.requests import Request

from engine_core.messages import Tokenization
from engine_core.refusal import ErrorCode, RefusalError
from server.http.answers import ErrorAnswer
from server.http.body import looked_at
from server.schemas.common import Count, TextOrIds
from server.service.endpoint import REF, Handler, Operation, operation, ref
from server.service.service import Model

JSON = dict[str, Any]


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
_NULL = Raw(b"null")
_fields = msgspec.json.Decoder(dict[str, Raw])
STATUSES = sorted({400, _BACKEND[0], *(status for status, _ in _KINDS.values())})


class EmptyBatchError(RefusalError):
    """A request with nothing in it."""


def empty_batch(field: str) -> EmptyBatchError:
    """The refusal of a request whose `field` is empty."""
    return EmptyBatchError("invalid_request", f"`{field}` cannot be empty", field)


def errors(handler: Handler) -> Handler:
    """`handler` with TEI's answers to errors."""

    @functools.wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except RefusalError as error:
            status, kind = _KINDS.get(error.code, _BACKEND)
            if isinstance(error, EmptyBatchError):
                status, kind = 400, "Empty"
            body = msgspec.json.encode(TEIError(error.message, kind))
            return ErrorAnswer(error, status=status, body=body)

    return answer


def operation_of(*answers: Any, body: type[msgspec.Struct] | None = None) -> Operation:
    """An endpoint's answer, of one type or another, and its body."""
    described = operation(TEIError, body)
    schemas, _ = msgspec.json.schema_components(answers, ref_template=REF)
    schema: JSON = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    success = {"description": "Success", "content": {"application/json": {"schema": schema}}}
    error = {"application/json": {"schema": ref(TEIError)}}
    failures = {
        status: {"description": "TEI's error", "content": error}
        for status in (STATUSES if body else (424, 503))
    }
    return Operation(
        arguments={**described.arguments, "responses": {200: success, **failures}},
        types=(*described.types, *answers),
    )


def either_operation(own: Operation, tei: Operation) -> Operation:
    """The operation of a path whose bodies and answers are our own or TEI's."""
    ours, theirs = own.arguments, tei.arguments
    statuses = sorted({*ours["responses"], *theirs["responses"]})
    responses = {
        status: _either(*(side["responses"].get(status) for side in (ours, theirs)))
        for status in statuses
    }
    body = _either(*(side["openapi_extra"]["requestBody"] for side in (ours, theirs)))
    return Operation(
        arguments={"responses": responses, "openapi_extra": {"requestBody": body}},
        types=(*own.types, *tei.types),
    )


def _either(one: JSON | None, other: JSON | None) -> JSON:
    if one is None or other is None:
        return one or other or {}
    schemas = [side["content"]["application/json"]["schema"] for side in (one, other)]
    return {**one, "content": {"application/json": {"schema": {"anyOf": schemas}}}}


async def fields_of(request: Request) -> dict[str, Raw]:
    """The fields that are not null of a request's body, which is still to be read.

    A body that cannot be decoded has none. Raises RefusalError.
    """
    try:
        fields = _fields.decode(await looked_at(request))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return {name: value for name, value in fields.items() if value != _NULL}


def side(options: TextOptions) -> Literal["left", "right"]:
    """The side on which a text is cut."""
    return "left" if options.truncation_direction in ("left", "Left") else "right"


def whole_cut(model: Model, options: TextOptions) -> Tokenization:
    """The tokenization that cuts to the model's length if the request permits it."""
    limit = model.max_model_len if options.truncate else None
    return Tokenization(truncate_to=limit, truncation_side=side(options))
