"""`/v1/rerank`: documents in the order of their relevance to a query."""

import numpy as np
from fastapi import APIRouter, Request, Response

from engine_core.client_jobs import Encoded, EngineError, FloatArray
from server.body import Body
from server.disconnect import CancelOnDisconnect
from server.encoding import count_usage, encode
from server.errors import APIError
from server.gate import CLIENT_LEFT
from server.openapi import operation
from server.prompts import check_count, text_items
from server.registry import Model
from server.schemas.rerank import (
    Document,
    Reranking,
    RerankOptionsNotServed,
    RerankRequest,
    RerankResult,
)
from server.service import Service, json_answer, service_of

router = APIRouter()
_body = Body(RerankRequest, not_served=RerankOptionsNotServed)


@router.post("/v1/rerank", **operation(Reranking, RerankRequest))
async def create_reranking(request: Request) -> Response:
    """Score documents against a query: a reranker's scores, or an embedder's cosine similarity."""
    service = service_of(request)
    body = await _body.read(request, service.limits.max_body_bytes)
    model = service.find(body.model, "/v1/rerank")
    check_count(len(body.documents), "documents", service.limits.max_documents)
    documents = [item if isinstance(item, str) else item.text for item in body.documents]
    with CancelOnDisconnect(request.receive):
        scores, encoded = await _score(service, model, body.query, documents)
        return json_answer(
            Reranking(
                id=service.new_id("rerank"),
                model=model.name,
                results=_results(scores, documents, body),
                usage=count_usage(encoded),
            )
        )
    return Response(status_code=CLIENT_LEFT)  # nobody reads it: the block above was cancelled


async def _score(
    service: Service, model: Model, query: str, documents: list[str]
) -> tuple[FloatArray, Encoded]:
    """float32[N], one score a document, and the job behind them."""
    if model.served.engine.head == "classify":
        encoded = await encode(service, model, text_items(documents), query=query)
        return encoded.vectors[:, 0], encoded
    try:
        encoded = await encode(service, model, text_items([query, *documents]))
    except EngineError as error:
        field = _field(error.param)
        message = error.message.replace(error.param or "", field or "", 1)
        raise APIError(error.code, message, field) from None
    return cosine_similarity(encoded.vectors[0], encoded.vectors[1:]), encoded


def cosine_similarity(vector: FloatArray, others: FloatArray) -> FloatArray:
    """float32[D], float32[N, D] -> float32[N] in [-1, 1]; 0 where a vector has no length."""
    lengths = np.linalg.norm(others, axis=1) * np.linalg.norm(vector)
    products = others @ vector
    similarity = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return np.clip(similarity, -1.0, 1.0)


def _results(scores: FloatArray, documents: list[str], body: RerankRequest) -> list[RerankResult]:
    best_first: list[int] = np.argsort(-scores, kind="stable")[: body.top_n].tolist()
    return [
        RerankResult(
            index=index,
            relevance_score=float(scores[index]),
            document=Document(documents[index]) if body.return_documents else None,
        )
        for index in best_first
    ]


def _field(param: str | None) -> str | None:
    """The request's field behind the engine's `input[i]`: the query goes before the documents."""
    if param is None or not param.startswith("input["):
        return param
    index = int(param[len("input[") : -1])
    return f"documents[{index - 1}]" if index else "query"
