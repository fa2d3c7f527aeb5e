"""`/v1/embeddings`: a vector for each input."""

import asyncio
import base64

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Raw

from engine_core.client_jobs import FloatArray
from server.body import Body
from server.disconnect import CancelOnDisconnect
from server.encoding import count_usage, encode
from server.errors import APIError
from server.gate import CLIENT_LEFT
from server.openapi import operation
from server.prompts import Items, parse_items
from server.schemas.embeddings import (
    Embedding,
    EmbeddingList,
    EmbeddingOptionsNotServed,
    EmbeddingRequest,
)
from server.service import json_answer, service_of

router = APIRouter()
_body = Body(EmbeddingRequest, not_served=EmbeddingOptionsNotServed)

_ROWS_AT_ONCE = 64


@router.post("/v1/embeddings", **operation(EmbeddingList, EmbeddingRequest))
async def create_embeddings(request: Request) -> Response:
    """Embed one or more texts, or lists of token ids."""
    service = service_of(request)
    body = await _body.read(request, service.limits.max_body_bytes)
    model = service.find(body.model, "/v1/embeddings")
    items = parse_items(body.input, "input", model, service.limits.max_inputs)
    _refuse_empty_texts(items, body.input)
    with CancelOnDisconnect(request.receive):
        encoded = await encode(service, model, items)
        return json_answer(
            EmbeddingList(
                data=await _embeddings(encoded.vectors, in_base64=body.encoding_format == "base64"),
                model=model.name,
                usage=count_usage(encoded),
            )
        )
    return Response(status_code=CLIENT_LEFT)  # nobody reads it: the block above was cancelled


def _refuse_empty_texts(items: Items, value: object) -> None:
    """Raises APIError for an empty text, of which there is nothing to embed."""
    if "" in items.texts:
        field = f"input[{items.texts.index('')}]" if isinstance(value, list) else "input"
        raise APIError("invalid_request", f"{field}: must not be empty", field)


async def _embeddings(vectors: FloatArray, *, in_base64: bool) -> list[Embedding]:
    """One entry a row, with a pause now and then: a large answer takes a while to write down."""
    embeddings: list[Embedding] = []
    for index, row in enumerate(vectors):
        if index % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)
        value = base64.b64encode(row.tobytes()).decode() if in_base64 else row.tolist()
        embeddings.append(Embedding(index=index, embedding=Raw(msgspec.json.encode(value))))
    return embeddings
