"""`/v1/rerank` and `/v2/rerank`: documents sorted by their relevance to a query."""

import numpy as np
from fastapi import Request, Response

from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import Tokenization
from server.encoding.encode import texts_cut_to
from server.encoding.relevance import Pairs, Relevance, checked_instruction, relevance
from server.http.body import Body, CancelOnDisconnect
from server.schemas.field_names import value_under_any_name
from server.schemas.rerank import (
    APIVersion,
    BilledUnits,
    Document,
    InputTokens,
    Reranking,
    RerankMeta,
    RerankRequest,
    RerankResult,
    VoyageResult,
)
from server.service.endpoint import Endpoint, operation
from server.service.inputs import check_count, text_items
from server.service.service import Model, json_answer, record_of, service_of

RERANK = Endpoint(
    "POST",
    "/v1/rerank",
    operation(Reranking, RerankRequest),
    tasks=("embed", "classify", "rerank"),
    relevance=True,
    order=40,
)
RERANK_V2 = RERANK.at("/v2/rerank", order=41)
_body = Body(RerankRequest)


@RERANK.answered_by
@RERANK_V2.answered_by
async def create_reranking(request: Request) -> Response:
    """Score documents against a query: by a reranker, or the similarity of vectors."""
    service, record = service_of(request), record_of(request)
    body = await _body.read(request)
    top_n = _top_n(body)
    model = service.find(record, body.model, RERANK, body.priority or 0)
    check_count(len(body.documents), "documents", service.limits.max_documents)
    documents = [item if isinstance(item, str) else item.text for item in body.documents]
    with CancelOnDisconnect(request.receive):
        pairs = Pairs(
            queries=text_items(body.query, "query"),
            texts=text_items(documents, "documents"),
            cut_texts=await _document_tokenization(model, body),
            instruction=checked_instruction(model, body.instruction),
            cache_salt=body.cache_salt,
            priority=body.priority,
        )
        found = await relevance(request, model, pairs)
        scores = found.raw_scores if body.use_activation is False else found.scores
        # Different raw scores may be equal after rounding by a sigmoid.
        best = np.argsort(-found.raw_scores, kind="stable")[:top_n].tolist()
        results, data = _results(scores, best, documents if body.return_documents else None)
        return json_answer(
            Reranking(
                id=service.new_id("rerank"),
                model=model.name,
                results=results,
                data=data,
                meta=_meta(found, APIVersion.of(request.url.path)),
                usage=found.usage,
            )
        )


def _top_n(body: RerankRequest) -> int | None:
    """The number of results to return. Raises RefusalError where the two names disagree."""
    return value_under_any_name(("top_n", body.top_n), ("top_k", body.top_k))


async def _document_tokenization(model: Model, body: RerankRequest) -> Tokenization | None:
    """Cuts documents if the request permits it; the query is never cut."""
    most = model.max_model_len if body.truncation else None
    most = body.max_tokens_per_doc or most
    if most is None:
        return None
    paired = model.served.execution.scores_pairs
    query, instruction = body.query if paired else None, body.instruction
    return await texts_cut_to(model, most, query=query, instruction=instruction)


def _results(
    scores: FloatArray, best: list[int], documents: list[str] | None
) -> tuple[list[RerankResult], list[VoyageResult]]:
    """The `best` documents as Cohere and Jina list them, and as Voyage does."""
    results: list[RerankResult] = []
    data: list[VoyageResult] = []
    for index in best:
        score, text = float(scores[index]), None if documents is None else documents[index]
        document = None if text is None else Document(text)
        results.append(RerankResult(index=index, relevance_score=score, document=document))
        data.append(VoyageResult(index=index, relevance_score=score, document=text))
    return results, data


def _meta(found: Relevance, version: APIVersion) -> RerankMeta:
    return RerankMeta(
        api_version=version,
        billed_units=BilledUnits(search_units=1),
        tokens=InputTokens(found.usage.prompt_tokens),
        warnings=[f"documents[{index}] was cut to fit" for index in found.cut],
    )
