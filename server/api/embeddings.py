"""`/v1/embeddings`: a vector for each input."""

from fastapi import Request, Response
from msgspec import UNSET

from engine_core.client.encode_calls import Encoded
from engine_core.messages import JobOptions
from server.encoding.embedding_plan import EmbeddingPlan, embedding_plan
from server.encoding.encode import count_usage, encode
from server.encoding.vector_json import rows_in_json
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


async def _embeddings(encoded: Encoded, plan: EmbeddingPlan) -> list[Embedding]:
    """One entry a row."""
    vectors = shorten(encoded.values, plan.dimensions, normalize=plan.normalize)
    rows = await rows_in_json(quantize(vectors, plan.dtype), in_base64=plan.in_base64)
    return [
        Embedding(
            index=index,
            embedding=row,
            truncated=True if encoded.dropped and encoded.dropped[index] > 0 else UNSET,
        )
        for index, row in enumerate(rows)
    ]
