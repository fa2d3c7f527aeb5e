"""`/v1/embeddings`: a vector for each input."""

from fastapi import Request
from msgspec import UNSET

from server.api.model_endpoint import reads
from server.encoding.embedding_plan import embedding_plan, planned_vectors
from server.encoding.encode import count_usage
from server.encoding.vectors import in_base64, in_lists, quantize, rows_in_json
from server.schemas.embeddings import (
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
)
from server.service.endpoint import Endpoint, operation
from server.service.registry import Model
from server.service.service import service_of

EMBEDDINGS = Endpoint(
    "POST",
    "/v1/embeddings",
    operation(EmbeddingList, EmbeddingRequest),
    tasks=("embed",),
    order=30,
)


@EMBEDDINGS.answered_by
@reads(EmbeddingRequest, EMBEDDINGS)
async def create_embeddings(
    request: Request, body: EmbeddingRequest, model: Model
) -> EmbeddingList:
    """Embed one or more texts, or lists of token ids."""
    plan = embedding_plan(body, model, service_of(request).limits)
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
    return EmbeddingList(data=data, model=model.name, usage=count_usage(encoded))
