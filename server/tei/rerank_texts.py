"""`/rerank`: TEI's if the body has `texts`, that of `/v1/rerank` if it has `documents`."""

import numpy as np
from fastapi import Request, Response

from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import Tokenization
from engine_core.refusal import RefusalError
from server.api.rerank import RERANK, answer_reranking, rerank_body
from server.encoding.encode import texts_cut_to
from server.encoding.relevance import Pairs, relevance
from server.http.body import Body, whole_body
from server.http.disconnect import CancelOnDisconnect
from server.metrics.request_record import RequestRecord
from server.schemas.rerank import Reranking, RerankRequest
from server.schemas.tei import Rank, RerankTextsRequest
from server.service.endpoint import Endpoint, operation
from server.service.inputs import check_count
from server.service.registry import Model
from server.service.service import Service, json_answer, record_of, service_of
from server.tei.dialects import is_tei
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
    return await answer_rerank(request, await whole_body(request))


async def answer_rerank(request: Request, raw: bytes) -> Response:
    """The answer to a body of either kind. Raises RefusalError where it is our own."""
    if is_tei(raw, "texts", unless=("documents",)):
        return await _tei_rerank(request, raw)
    strictly = service_of(request).config.strict_fields
    return await answer_reranking(request, rerank_body.decode(raw, strictly=strictly))


@tei_errors
async def _tei_rerank(request: Request, raw: bytes) -> Response:
    service, record = service_of(request), record_of(request)
    body = _texts_body.decode(raw, strictly=service.config.strict_fields)
    model = _reranker(service, record, body.model)
    if not body.texts:
        raise empty_batch("texts")
    check_count(len(body.texts), "texts", service.limits.max_documents)
    with CancelOnDisconnect(request.receive):
        pairs = Pairs(
            queries=[body.query],
            texts=body.texts,
            query_name=lambda _: "query",
            text_name=lambda index: f"texts[{index}]",
            cut_texts=await _text_tokenization(model, body),
        )
        found = await relevance(service, record, model, pairs)
        scores = found.raw_scores if body.raw_scores else found.probabilities
        best = np.argsort(-found.raw_scores, kind="stable").tolist()
        return json_answer(_ranks(scores, best, body.texts if body.return_text else None))


def _reranker(service: Service, record: RequestRecord, name: str | None) -> Model:
    """The one of that name, or the only reranker, or if there is none the only embedder. Raises
    RefusalError otherwise."""
    if name is not None:
        return service.find(record, name, RERANK)
    models = {model.name: model.served.execution for model in service.registry.models}
    rerankers = [
        name
        for name, execution in models.items()
        if execution.scores_pairs and RERANK.is_served_by(execution)
    ]
    if len(rerankers) > 1:
        names = ", ".join(rerankers)
        raise RefusalError("model_required", f"several models serve this endpoint: {names}")
    return service.find(record, rerankers[0] if rerankers else None, RERANK)


async def _text_tokenization(model: Model, body: RerankTextsRequest) -> Tokenization | None:
    if not body.truncate:
        return None
    query = body.query if model.served.execution.scores_pairs else None
    at = side(body.truncation_direction)
    return await texts_cut_to(model, model.max_model_len, query=query, side=at)


def _ranks(scores: FloatArray, best: list[int], texts: list[str] | None) -> list[Rank]:
    return [
        Rank(index=index, score=float(scores[index]), text=None if texts is None else texts[index])
        for index in best
    ]
