"""`/v1/rerank` and `/v2/rerank`: documents sorted by their relevance to a query."""

import numpy as np
from fastapi import Request

from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import Tokenization
from server.api.model_endpoint import reads
from server.encoding.encode import job_options, texts_cut_to
from server.encoding.scores import Pairs, checked_instruction, relevance
from server.schemas.common import value_under_any_name
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
from server.service.registry import Model
from server.service.service import service_of

RERANK = Endpoint(
    "POST",
    "/v1/rerank",
    operation(Reranking, RerankRequest),
    tasks=("embed", "classify", "rerank"),
    relevance=True,
    order=40,
)
RERANK_V2 = RERANK.at("/v2/rerank", order=41)


@RERANK.answered_by
@RERANK_V2.answered_by
@reads(RerankRequest, RERANK)
async def create_reranking(request: Request, body: RerankRequest, model: Model) -> Reranking:
    """Score documents against a query: by a reranker, or the similarity of vectors."""
    service = service_of(request)
    top_n = value_under_any_name(("top_n", body.top_n), ("top_k", body.top_k))
    check_count(len(body.documents), "documents", service.limits.max_documents)
    documents = [item if isinstance(item, str) else item.text for item in body.documents]
    pairs = Pairs(
        queries=text_items(body.query, "query"),
        texts=text_items(documents, "documents"),
        cut_texts=await _document_tokenization(model, body),
        instruction=checked_instruction(model, body.instruction),
        options=job_options(body),
    )
    found = await relevance(request, model, pairs)
    scores = found.raw_scores if body.use_activation is False else found.scores
    # Different raw scores may be equal after rounding by a sigmoid.
    best = np.argsort(-found.raw_scores, kind="stable")[:top_n].tolist()
    results, data = _results(scores, best, documents if body.return_documents else None)
    return Reranking(
        id=service.new_id("rerank"),
        model=model.name,
        results=results,
        data=data,
        meta=RerankMeta(
            api_version=APIVersion.of(request.url.path),
            billed_units=BilledUnits(search_units=1),
            tokens=InputTokens(found.usage.prompt_tokens),
            warnings=[f"documents[{index}] was cut to fit" for index in found.cut],
        ),
        usage=found.usage,
    )


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
