"""`/v1/embeddings`: a vector for each input."""

import asyncio
import base64

import msgspec
from fastapi import Request, Response
from msgspec import UNSET, Raw

from engine_core.client.encode_calls import EncodedVectors, VectorsCall
from engine_core.client.job_options import JobOptions
from server.encoding.embedding_plan import EmbeddingPlan, embedding_plan
from server.encoding.encode import count_usage, encode
from server.encoding.vectors import quantize, shorten
from server.http.body import Body
from server.http.disconnect import CancelOnDisconnect
from server.http.openapi import operation
from server.metrics.request_record import record_of
from server.schemas.embeddings import (
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
)
from server.service.endpoint import Endpoint
from server.service.service import json_answer, service_of

EMBEDDINGS = Endpoint(
    "POST",
    "/v1/embeddings",
    operation(EmbeddingList, EmbeddingRequest),
    tasks=("embed",),
    order=30,
)
_body = Body(EmbeddingRequest)

_ROWS_AT_ONCE = 64


@EMBEDDINGS.answered_by
async def create_embeddings(request: Request) -> Response:
    """Embed one or more texts, or lists of token ids."""
    service, record = service_of(request), record_of(request)
    body = await _body.read(request, service.limits.max_body_bytes)
    model = service.find(record, body.model, EMBEDDINGS, body.priority or 0)
    plan = embedding_plan(body, model, service.limits)
    with CancelOnDisconnect(request.receive):
        encoded = await encode(
            service,
            record,
            model,
            VectorsCall,
            plan.items,
            options=JobOptions(
                tokenization=plan.tokenization,
                cache_salt=body.cache_salt or "",
                priority=plan.priority,
            ),
        )
        return json_answer(
            EmbeddingList(
                data=await _embeddings(encoded, plan),
                model=model.name,
                usage=count_usage(encoded),
            )
        )


async def _embeddings(encoded: EncodedVectors, plan: EmbeddingPlan) -> list[Embedding]:
    """One entry a row. Other requests run in between: a large answer takes a while to encode."""
    vectors = shorten(encoded.vectors, plan.dimensions, normalize=plan.normalize)
    embeddings: list[Embedding] = []
    for index, row in enumerate(quantize(vectors, plan.dtype)):
        if index % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
            await asyncio.sleep(0)
        value = base64.b64encode(row.tobytes()).decode() if plan.in_base64 else row.tolist()
        cut = bool(encoded.dropped) and encoded.dropped[index] > 0
        embeddings.append(
            Embedding(
                index=index,
                embedding=Raw(msgspec.json.encode(value)),
                truncated=True if cut else UNSET,
            )
        )
    return embeddings
