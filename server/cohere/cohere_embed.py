"""`/v1/embed` and `/v2/embed`: a vector for each text, in one type or several."""

from collections.abc import Iterable

import numpy as np
from fastapi import Request, Response
from msgspec import Raw

from engine_core.client.encode_calls import Encoded
from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import JobOptions
from server.api.embeddings import EMBEDDINGS
from server.cohere.embed_plan import cohere_embedding_plan, given_texts
from server.encoding.encode import encode
from server.encoding.row_names import item_names
from server.encoding.vector_json import rows_in_json
from server.encoding.vectors import AnyArray, quantize, shorten
from server.http.body import Body
from server.http.disconnect import CancelOnDisconnect
from server.http.openapi import operation
from server.metrics.request_record import record_of
from server.schemas.cohere.embed_request import (
    CohereEmbeddings,
    CohereEmbedRequest,
    EmbeddingType,
    EmbedMeta,
)
from server.schemas.rerank import APIVersion, InputTokens
from server.service.endpoint import Endpoint
from server.service.service import json_answer, service_of

EMBED = Endpoint(
    "POST",
    "/v1/embed",
    operation(CohereEmbeddings, CohereEmbedRequest),
    variant_of=EMBEDDINGS,
    order=31,
)
EMBED_V2 = Endpoint(
    "POST",
    "/v2/embed",
    operation(CohereEmbeddings, CohereEmbedRequest),
    variant_of=EMBEDDINGS,
    order=32,
)
_body = Body(CohereEmbedRequest)


@EMBED.answered_by
@EMBED_V2.answered_by
async def embed(request: Request) -> Response:
    """Embed texts as Cohere does: too long ones are cut unless `truncate` is NONE."""
    service, record = service_of(request), record_of(request)
    body = await _body.read(request, service.limits.max_body_bytes)
    model = service.find(record, body.model, EMBEDDINGS, body.priority or 0)
    texts, field = given_texts(body)
    plan = cohere_embedding_plan(body, texts, field, model, service.limits)
    name, version = item_names(field, texts), APIVersion.of(request.url.path)
    with CancelOnDisconnect(request.receive):
        options = JobOptions(tokenization=plan.tokenization, priority=plan.priority)
        encoded = await encode(service, record, model, plan.items, options=options, name=name)
        vectors = shorten(encoded.values, plan.dimensions, normalize=plan.normalize)
        one_type = version.version == "1" and body.embedding_types is None
        types: list[EmbeddingType] = body.embedding_types or ["float"]
        by_type: dict[EmbeddingType, list[Raw]] = {
            kind: await rows_in_json(_of_type(vectors, kind), in_base64=kind == "base64")
            for kind in types
        }
        return json_answer(
            CohereEmbeddings(
                id=service.new_id("embed"),
                response_type="embeddings_floats" if one_type else "embeddings_by_type",
                embeddings=by_type["float"] if one_type else by_type,
                texts=texts,
                meta=EmbedMeta(
                    api_version=version,
                    billed_units=InputTokens(sum(encoded.prompt_tokens)),
                    warnings=[f"{name(row)} was cut to fit" for row in _cut(encoded)],
                ),
            )
        )


def _cut(encoded: Encoded) -> Iterable[int]:
    """The rows that lost tokens."""
    return (row for row, dropped in enumerate(encoded.dropped) if dropped)


def _of_type(vectors: FloatArray, kind: EmbeddingType) -> AnyArray:
    """The numbers of a type; base64 is that of floats, and uint8 is int8 and 128."""
    match kind:
        case "float" | "base64":
            return vectors
        case "uint8":
            return (quantize(vectors, "int8").astype(np.int16) + 128).astype(np.uint8)
        case "int8" | "binary" | "ubinary":
            return quantize(vectors, kind)
