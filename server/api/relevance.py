"""How well texts fit queries, by a reranker or the similarity of vectors."""

from typing import Annotated

import msgspec
import numpy as np
from fastapi import Request
from msgspec import Meta

from engine_core.client.pending_jobs import Encoded, FloatArray, OfTokens
from engine_core.messages import JobOptions, Tokenization
from server.api.classify import label_scores, probabilities
from server.api.declaration import answers
from server.api.embeddings import shorten, similarity
from server.api.encode import count_usage, encode, job_options, texts_cut_to
from server.api.token_outputs import token_vectors
from server.schemas.common import (
    EncodeAnswer,
    EncodeRequest,
    KeptTokens,
    Usage,
    invalid,
    name_and_value,
    value_under_any_name,
)
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
from server.service.endpoint import Endpoint
from server.service.inputs import Items, check_count, items_cut_to, text_items
from server.service.late_interaction import LateInteraction, max_sim
from server.service.service import Model, service_of
from workers.contract.config import Task

Texts = str | Annotated[list[str], Meta(min_length=1)]


class ScoreRequest(EncodeRequest, kw_only=True, frozen=True):
    """A request of `/v1/score`: one first text for all second ones, or as many of both."""

    """Example: {"text_1": "What do pandas eat?", "text_2": ["The giant panda lives on bamboo.",
    "Interest rates rose."]}"""

    text_1: Texts | None = None
    """One text for all of `text_2`, or one for each. Default: this or `queries`."""
    text_2: Texts | None = None
    """At least one; over 1000: `too_large`; too long: `context_length_exceeded`. Default: this or
    `documents`."""
    queries: Texts | None = None
    """Another name of `text_1`; refused if the two differ."""
    documents: Texts | None = None
    """Another name of `text_2`; refused if the two differ."""
    truncate_prompt_tokens: KeptTokens | None = None
    """1 to the model's length, −1 for that: longer inputs are truncated, of a pair the second
    text."""
    use_activation: bool | None = None
    """False: a reranker's scores are logits, without its configuration's activation. Default:
    true."""
    instruction: str | None = None
    """The task for a reranker that is a causal model; others refuse it. Default: its template's."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One pair's score. `index` is that of its second text."""

    index: int
    """Number of the pair or input."""
    object: str = "score"
    """The kind of entry: `score`, or `pooling`."""
    score: float
    """How well the two texts fit: as `relevance_score` of a reranking."""


class ScoreList(EncodeAnswer[Score], frozen=True, kw_only=True):
    """The answer of `/v1/score`, in the order of the request."""


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """One query for all texts, or one for each. `query_options` are for queries that are embedded
    alone, `text_options` for texts, alone or with their queries."""

    queries: Items
    texts: Items
    query_options: JobOptions
    text_options: JobOptions
    instruction: str | None = None


class Relevance(msgspec.Struct, frozen=True):
    """One score a pair, float32[N], in three forms. `dropped` is that of the texts. A classifier's
    `scores` are what its checkpoint defines, `raw_scores` its logits, `probabilities` within 0 and
    1. An embedder's are all similarities."""

    scores: FloatArray
    raw_scores: FloatArray
    probabilities: FloatArray
    usage: Usage
    dropped: list[int]


_TASKS: tuple[Task, ...] = ("embed", "embed_tokens", "classify", "rerank")


@answers(
    Endpoint("POST", "/v1/rerank", "Jina, vLLM", "Cohere", tasks=_TASKS, relevance=True, order=40)
)
async def create_reranking(request: Request, body: RerankRequest, model: Model) -> Reranking:
    """Score documents against a query: by a reranker, or the similarity of vectors."""
    service = service_of(request)
    top_n = value_under_any_name(("top_n", body.top_n), ("top_k", body.top_k))
    check_count(len(body.documents), "documents", service.limits.max_documents)
    documents = [item if isinstance(item, str) else item.text for item in body.documents]
    pairs = Pairs(
        queries=text_items(body.query, "query"),
        texts=text_items(documents, "documents"),
        query_options=job_options(body),
        text_options=job_options(body, await _document_tokenization(model, body)),
        instruction=checked_instruction(model, body.instruction),
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
            warnings=cut_warnings(pairs.texts, found.dropped),
        ),
        usage=found.usage,
    )


def cut_warnings(items: Items, dropped: list[int]) -> list[str]:
    """Cohere's lines about items that lost tokens, `dropped` of each."""
    return [f"{items.name(row)} was cut to fit" for row, tokens in enumerate(dropped) if tokens]


rerank_v2 = create_reranking.at("/v2/rerank", "Cohere", order=41)


async def _document_tokenization(model: Model, body: RerankRequest) -> Tokenization | None:
    """Cuts documents if the request permits it, but never the query."""
    most = body.max_tokens_per_doc or (model.max_model_len if body.truncation else None)
    if most is None:
        return None
    query = body.query if model.served.execution.scores_pairs else None
    return await texts_cut_to(model, most, query=query, instruction=body.instruction)


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


@answers(Endpoint("POST", "/v1/score", "Jina, vLLM", tasks=_TASKS, relevance=True, order=50))
async def create_scores(request: Request, body: ScoreRequest, model: Model) -> ScoreList:
    """Score pairs of texts: by a reranker, or the similarity of vectors."""
    service = service_of(request)
    pairs = _pairs(body, model, service.limits.max_documents)
    found = await relevance(request, model, pairs)
    scores = found.raw_scores if body.use_activation is False else found.scores
    return ScoreList(
        id=service.new_id("score"),
        model=model.name,
        data=[Score(index=index, score=score) for index, score in enumerate(scores.tolist())],
        usage=found.usage,
    )


score_alias = create_scores.at("/score", order=51)


def _pairs(body: ScoreRequest, model: Model, max_pairs: int) -> Pairs:
    """The pairs of a request. Raises RefusalError where texts are missing or do not pair up."""
    first, queries = _either(("text_1", body.text_1), ("queries", body.queries))
    second, texts = _either(("text_2", body.text_2), ("documents", body.documents))
    check_count(len(texts), second, max_pairs)
    if len(queries) not in (1, len(texts)):
        counts = f"{len(queries)} texts, but {second} has {len(texts)}"
        raise invalid(first, f"{counts}; give one text, or one for each")
    cut = items_cut_to(body.truncate_prompt_tokens, model.max_model_len)
    return Pairs(
        queries=queries,
        texts=texts,
        query_options=job_options(body, cut),
        text_options=job_options(body, cut),
        instruction=checked_instruction(model, body.instruction),
    )


def _either(*named: tuple[str, Texts | None]) -> tuple[str, Items]:
    """The name of the field that is given, and its texts. Raises RefusalError for none."""
    name, texts = name_and_value(*named)
    if texts is None:
        raise invalid(name, "is required")
    return name, text_items(texts, name)


def checked_instruction(model: Model, instruction: str | None) -> str | None:
    """The instruction of a request, if the model takes any. Raises RefusalError otherwise."""
    reranking = model.served.execution.model.reranking
    if reranking is not None and reranking.known_template.takes_instruction:
        return instruction
    if instruction:
        raise invalid("instruction", f"model {model.name} has no template that takes one")
    return None


async def relevance(request: Request, model: Model, pairs: Pairs) -> Relevance:
    """Score every pair. Raises RefusalError with the request's own field and index."""
    queries, texts, config = pairs.queries, pairs.texts, model.served.execution.model
    for items in (queries, texts):
        model.text_bound.check_all(items.texts, items.name)
    if model.served.execution.scores_pairs:
        query = queries.texts[0] if len(queries) == 1 else queries.texts
        options, instruction = pairs.text_options, pairs.instruction
        found = await encode(request, model, texts, options, query=query, instruction=instruction)
        scores = label_scores(found.values, config)[:, 0]
        likely = probabilities(found.values, config)[:, 0]
        return Relevance(scores, found.values[:, 0], likely, count_usage(found), found.dropped)
    if model.late_interaction is not None:
        return await _late_relevance(request, model, model.late_interaction, pairs)
    both, count = await _embedded(request, model, pairs), len(queries)
    scores = similarity(both.values[:count], both.values[count:], config)
    return Relevance(scores, scores, scores, count_usage(both), both.dropped[count:])


async def _late_relevance(
    request: Request, model: Model, late: LateInteraction, pairs: Pairs
) -> Relevance:
    """MaxSim of the vectors of each pair's tokens. Those of texts are not kept: each is scored as
    its row comes."""
    options = pairs.query_options
    asked, encoded = await token_vectors(request, model, pairs.queries, options, query=True)
    queries = [shorten(own, own.shape[1], normalize=True) for own in asked]

    def score(row: int, vectors: FloatArray, ids: bytes) -> FloatArray:
        kept = late.kept(shorten(vectors, vectors.shape[1], normalize=True), ids, query=False)
        return np.array([max_sim(queries[row if len(queries) > 1 else 0], kept)], np.float32)

    found = await encode(
        *(request, model, pairs.texts, pairs.text_options),
        of_tokens=OfTokens(("token_vectors",), late.marks(query=False), score),
    )
    scores = found.values[:, 0]
    both = Encoded(values=found.values, prompt_tokens=encoded.prompt_tokens + found.prompt_tokens)
    return Relevance(scores, scores, scores, count_usage(both), found.dropped)


async def _embedded(request: Request, model: Model, pairs: Pairs) -> Encoded:
    """Queries, then texts: one job, unless their options differ."""
    queries, texts, count = pairs.queries, pairs.texts, len(pairs.queries)
    if pairs.query_options == pairs.text_options:
        together = Items(
            [*queries.texts, *texts.texts],
            [],
            lambda row: queries.name(row) if row < count else texts.name(row - count),
        )
        return await encode(request, model, together, pairs.text_options)
    first = await encode(request, model, queries, pairs.query_options)
    second = await encode(request, model, texts, pairs.text_options)
    return Encoded(
        values=np.concatenate([first.values, second.values]),
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        dropped=[0] * count + second.dropped,
    )
