"""`/rerank`: TEI's if the body has `texts`, that of `/v1/rerank` if it has `documents`."""

import numpy as np
from fastapi import Request, Response

from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import Tokenization
from engine_core.refusal import RefusalError
from server.api.rerank import RERANK, create_reranking
from server.encoding.encode import texts_cut_to
from server.encoding.relevance import Pairs, relevance
from server.http.body import Body, CancelOnDisconnect
from server.schemas.rerank import Reranking, RerankRequest
from server.schemas.tei import Rank, RerankTextsRequest
from server.service.endpoint import Endpoint, operation
from server.service.inputs import check_count, text_items
from server.service.service import Model, json_answer, record_of, service_of
from server.tei.dialects import fields_of
from server.tei.operations import either_operation, tei_operation
from server.tei.tei_errors import empty_batch, tei_errors
from server.tei.text_limit import side

RERANK_TEXTS = Endpoint(
    "POST",
    "/rerank",
    either_operation(
        operation(Reranking, RerankRequest), tei_operation(list[Rank], body=RerankTextsRequest)
    ),
    variant_of=RERANK,
    order=120,
)
_texts_body = Body(RerankTextsRequest)


@RERANK_TEXTS.answered_by
async def rerank(request: Request) -> Response:
    """Score texts against a query, for clients of TEI, Cohere and others."""
    fields = await fields_of(request)
    is_tei = "texts" in fields and "documents" not in fields
    return await (_rerank_texts if is_tei else create_reranking)(request)


@tei_errors
async def _rerank_texts(request: Request) -> Response:
    service = service_of(request)
    body = await _texts_body.read(request)
    model = _reranker(request, body.model)
    if not body.texts:
        raise empty_batch("texts")
    check_count(len(body.texts), "texts", service.limits.max_documents)
    with CancelOnDisconnect(request.receive):
        pairs = Pairs(
            queries=text_items(body.query, "query"),
            texts=text_items(body.texts, "texts"),
            cut_texts=await _text_tokenization(model, body),
        )
        found = await relevance(request, model, pairs)
        scores = found.raw_scores if body.raw_scores else found.probabilities
        best = np.argsort(-found.raw_scores, kind="stable").tolist()
        return json_answer(_ranks(scores, best, body.texts if body.return_text else None))


def _reranker(request: Request, name: str | None) -> Model:
    """The one of that name, or the only reranker, or if there is none the only embedder. Raises
    RefusalError otherwise."""
    service = service_of(request)
    if name is None:
        rerankers = [
            model.name
            for model in service.registry.models
            if model.served.execution.scores_pairs and RERANK.is_served_by(model.served.execution)
        ]
        if len(rerankers) > 1:
            names = ", ".join(rerankers)
            raise RefusalError("model_required", f"several models serve this endpoint: {names}")
        name = next(iter(rerankers), None)
    return service.find(record_of(request), name, RERANK)


async def _text_tokenization(model: Model, body: RerankTextsRequest) -> Tokenization | None:
    if not body.truncate:
        return None
    query = body.query if model.served.execution.scores_pairs else None
    return await texts_cut_to(model, model.max_model_len, query=query, side=side(body))


def _ranks(scores: FloatArray, best: list[int], texts: list[str] | None) -> list[Rank]:
    return [
        Rank(index=index, score=float(scores[index]), text=None if texts is None else texts[index])
        for index in best
    ]
