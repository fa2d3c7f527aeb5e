"""The OpenAPI description: bodies and answers are msgspec structs, which FastAPI cannot read."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from server.errors import ERRORS, ErrorBody
from server.schemas.chat import ChatChunk, ChatCompletion, ChatRequest
from server.schemas.classify import ClassificationList, ClassifyRequest
from server.schemas.common import Health, ModelCard, ModelList, Version
from server.schemas.completions import Completion, CompletionRequest
from server.schemas.embeddings import EmbeddingList, EmbeddingRequest
from server.schemas.rerank import Reranking, RerankRequest
from server.schemas.score import ScoreList, ScoreRequest
from server.schemas.tei import (
    EmbedRequest,
    EmbedTokensRequest,
    Info,
    Prediction,
    PredictRequest,
    Rank,
    RerankTextsRequest,
    SimilarityRequest,
    SparseValue,
    TEIError,
)
from server.schemas.tokenize import DetokenizedText, DetokenizeRequest, TokenizeRequest, Tokens

_REF = "#/components/schemas/{name}"
# Asked for only where the daemon was given keys.
_KEY = {"type": "http", "scheme": "bearer"}
_STRUCTS = (
    CompletionRequest,
    Completion,
    ChatRequest,
    ChatCompletion,
    ChatChunk,
    EmbeddingRequest,
    EmbeddingList,
    RerankRequest,
    Reranking,
    ScoreRequest,
    ScoreList,
    ClassifyRequest,
    ClassificationList,
    EmbedRequest,
    EmbedTokensRequest,
    SparseValue,
    SimilarityRequest,
    PredictRequest,
    Prediction,
    RerankTextsRequest,
    Rank,
    Info,
    TEIError,
    TokenizeRequest,
    Tokens,
    DetokenizeRequest,
    DetokenizedText,
    ModelList,
    ModelCard,
    Health,
    Version,
    ErrorBody,
)


def operation(
    answer: type[msgspec.Struct],
    body: type[msgspec.Struct] | None = None,
    *,
    chunk: type[msgspec.Struct] | None = None,
) -> dict[str, Any]:
    """What a route says of itself: the keyword arguments of FastAPI's decorators.

    `chunk` is what an answer that may be streamed is then made of.
    """
    content = {"application/json": {"schema": _ref(answer)}}
    if chunk is not None:
        content["text/event-stream"] = {"schema": _event(chunk)}
    responses: dict[int | str, dict[str, Any]] = {
        200: {"description": "Success", "content": content}
    }
    error = {"application/json": {"schema": _ref(ErrorBody)}}
    if body is None:
        responses["default"] = {"description": "Any error", "content": error}
        return {"responses": responses}
    for status in sorted({kind.status for kind in ERRORS.values()}):
        responses[status] = {"description": _codes(status), "content": error}
    request = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    return {"responses": responses, "openapi_extra": {"requestBody": request}}


def describe(app: FastAPI) -> None:
    """Make `app` describe the structs that its operations refer to."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
            )
            _, components = msgspec.json.schema_components(_STRUCTS, ref_template=_REF)
            schema["components"] = {"schemas": components, "securitySchemes": {"key": _KEY}}
            schema["security"] = [{"key": []}, {}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi


def documented_operations(app: FastAPI) -> set[tuple[str, str]]:
    """Methods and paths that `app` describes, parameters written `{name}`."""
    paths: dict[str, dict[str, Any]] = app.openapi()["paths"]
    return {(method.upper(), path) for path, item in paths.items() for method in item}


def _ref(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {"$ref": _REF.format(name=struct.__name__)}


def _event(chunk: type[msgspec.Struct]) -> dict[str, Any]:
    """One event of a stream: a chunk, an error, or at the end of one that is whole `[DONE]`."""
    json = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": [_ref(chunk), _ref(ErrorBody)]},
    }
    data = {"anyOf": [{"const": "[DONE]"}, json]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _codes(status: int) -> str:
    codes = [code for code, kind in ERRORS.items() if kind.status == status]
    return "`code`: " + ", ".join(codes)
