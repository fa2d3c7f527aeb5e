"""`/v1/embeddings`: a vector for each input."""

from fastapi import Request, Response
from msgspec import UNSET

from server.encoding.embedding_plan import embedding_plan, planned_vectors
from server.encoding.encode import count_usage
from server.encoding.vector_json import in_base64, in_lists, rows_in_json
from server.encoding.vectors import quantize
from server.http.body import Body, CancelOnDisconnect
from server.schemas.embeddings import (
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
)
from server.service.endpoint import Endpoint, operation
from server.service.service import json_answer, record_of, service_of

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
    body = await _body.read(request)
    model = service.find(record, body.model, EMBEDDINGS, body.priority or 0)
    plan = embedding_plan(body, model, service.limits)
    with CancelOnDisconnect(request.receive):
        encoded = await planned_vectors(request, model, plan)
        form = in_base64 if body.encoding_format == "base64" else in_lists
        rows = await rows_in_json(quantize(encoded.values, plan.dtype), form)
        data = [
            Embedding(
                index=index,
                embedding=row,
                truncated=True if encoded.dropped and encoded.dropped[index] > 0 else UNSET,
            )
            for index, row in enumerate(rows)
        ]
        return json_answer(EmbeddingList(data=data, model=model.name, usage=count_usage(encoded)))
