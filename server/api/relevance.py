"""`/v1/rerank` and `/v1/score`: how well texts fit queries, by a reranker or the similarity of
vectors."""

from typing import Annotated

import msgspec
import numpy as np
from fastapi import Request
from msgspec import Meta

from engine_core.client.pending_jobs import Encoded, FloatArray
from engine_core.messages import JobOptions, Tokenization
from server.api.classify import label_scores, probabilities
from server.api.declaration import answers
from server.api.embeddings import similarity
from server.api.encode import count_usage, encode, job_options, texts_cut_to
from server.schemas.common import (
    EncodeAnswer,
    EncodeRequest,
    KeptTokens,
    Usage,
    given_twice,
    invalid,
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
from server.service.service import Model, service_of
from workers.contract.config import Task

Texts = str | Annotated[list[str], Meta(min_length=1)]


class ScoreRequest(EncodeRequest, kw_only=True, frozen=True):
    """A request of `/v1/score`: one first text for all second ones, or as many of both.

    `queries` and `documents` are other names of `text_1` and `text_2`. With `use_activation`
    false the answer holds the model's logits, without the activation of its checkpoint.
    `instruction` replaces the default of a reranker whose template has one.
    """

    """Example: {"text_1": "What do pandas eat?", "text_2": ["The giant panda lives on bamboo.",
    "Interest rates rose."]}"""

    text_1: Texts | None = None
    """One text for all of `text_2`, or one for each. Default: this or `queries`."""
    text_2: Texts | None = None
    """At least one; over 1000: `too_large`; longer than the model's limit:
    `context_length_exceeded`. Default: this or `documents`."""
    queries: Texts | None = None
    """Another name of `text_1`; not both."""
    documents: Texts | None = None
    """Another name of `text_2`; not both."""
    truncate_prompt_tokens: KeptTokens | None = None
    """From 1 to the model's context length: longer inputs are truncated to this many tokens; in a
    pair only the second text loses tokens. −1: the model's length."""
    use_activation: bool | None = None
    """False: a reranker's scores are its logits, without the activation that its configuration
    declares. Default: true."""
    instruction: str | None = None
    """The task for a reranker that is a causal model, as its prompt states it; another model
    refuses it. Default: the template's."""


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
    """One query for all texts, or one for each of them.

    `cut_texts` cuts a text, embedded alone or scored with its query. `cut_queries` cuts a query
    that is embedded alone. None refuses what is too long. `instruction` is that of `EncodeJob`.
    `options` hold for each job, but for the tokenization.
    """

    queries: Items
    texts: Items
    cut_queries: Tokenization | None = None
    cut_texts: Tokenization | None = None
    instruction: str | None = None
    options: JobOptions = JobOptions()

    def cut_to(self, cut: Tokenization | None) -> JobOptions:
        """The options of a job whose texts are cut so."""
        return msgspec.structs.replace(self.options, tokenization=cut or Tokenization())


class Relevance(msgspec.Struct, frozen=True):
    """One score a pair, float32[N], in three forms, the usage, and the indices of texts cut.

    A classifier's `scores` are what its checkpoint defines, `raw_scores` its logits, and
    `probabilities` lie between 0 and 1. An embedder's are all similarities.
    """

    scores: FloatArray
    raw_scores: FloatArray
    probabilities: FloatArray
    usage: Usage
    cut: list[int]


_TASKS: tuple[Task, ...] = ("embed", "classify", "rerank")


@answers(Endpoint("POST", "/v1/rerank", tasks=_TASKS, relevance=True, order=40))
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


rerank_v2 = create_reranking.at("/v2/rerank", order=41)


async def _document_tokenization(model: Model, body: RerankRequest) -> Tokenization | None:
    """Cuts documents if the request permits it, but never the query."""
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


@answers(Endpoint("POST", "/v1/score", tasks=_TASKS, relevance=True, order=50))
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
    first_name, firsts = _either(("text_1", body.text_1), ("queries", body.queries))
    second_name, seconds = _either(("text_2", body.text_2), ("documents", body.documents))
    queries, texts = text_items(firsts, first_name), text_items(seconds, second_name)
    check_count(len(texts), second_name, max_pairs)
    if len(queries) not in (1, len(texts)):
        raise invalid(
            first_name,
            f"{len(queries)} texts, but {second_name} has {len(texts)}; "
            "give one text, or one for each",
        )
    cut = items_cut_to(body.truncate_prompt_tokens, model.max_model_len)
    return Pairs(
        queries=queries,
        texts=texts,
        cut_queries=cut,
        cut_texts=cut,
        instruction=checked_instruction(model, body.instruction),
        options=job_options(body),
    )


def _either(one: tuple[str, Texts | None], other: tuple[str, Texts | None]) -> tuple[str, Texts]:
    """The field that is given, with its name. Raises RefusalError for both, and for neither."""
    given = [(name, value) for name, value in (one, other) if value is not None]
    if not given:
        raise invalid(one[0], "is required")
    if len(given) > 1:
        raise given_twice(one[0], other[0])
    return given[0]


def checked_instruction(model: Model, instruction: str | None) -> str | None:
    """The instruction of a request. Raises RefusalError if the model takes none; an empty one is
    none for such a model."""
    reranking = model.served.execution.model.reranking
    if reranking is not None and reranking.known_template.takes_instruction:
        return instruction
    if instruction:
        raise invalid("instruction", f"model {model.name} has no template that takes one")
    return None


async def relevance(request: Request, model: Model, pairs: Pairs) -> Relevance:
    """Score every pair.

    Raises RefusalError, with the request's own field and index, if admission or the engine refuses
    the job, or it fails.
    """
    queries, texts, config = pairs.queries, pairs.texts, model.served.execution.model
    for items in (queries, texts):
        model.text_bound.check_all(items.texts, items.name)
    if model.served.execution.scores_pairs:
        encoded = await encode(
            request,
            model,
            texts,
            pairs.cut_to(pairs.cut_texts),
            query=queries.texts[0] if len(queries) == 1 else queries.texts,
            instruction=pairs.instruction,
        )
        scores = label_scores(encoded.values, config)[:, 0]
        likely = probabilities(encoded.values, config)[:, 0]
        dropped = _cut_indices(encoded.dropped)
        return Relevance(scores, encoded.values[:, 0], likely, count_usage(encoded), dropped)
    of_queries, of_texts = await _encode_apart(request, model, pairs)
    scores = similarity(of_queries.values, of_texts.values, config)
    prompt_tokens = sum(of_queries.prompt_tokens) + sum(of_texts.prompt_tokens)
    usage = Usage(prompt_tokens, prompt_tokens)
    return Relevance(scores, scores, scores, usage, _cut_indices(of_texts.dropped))


async def _encode_apart(request: Request, model: Model, pairs: Pairs) -> tuple[Encoded, Encoded]:
    """Queries and texts: one job, unless they are cut in different ways."""
    queries, texts, count = pairs.queries, pairs.texts, len(pairs.queries)
    of_texts = pairs.cut_to(pairs.cut_texts)
    if pairs.cut_queries != pairs.cut_texts:
        of_queries = pairs.cut_to(pairs.cut_queries)
        encoded = await encode(request, model, queries, of_queries)
        return encoded, await encode(request, model, texts, of_texts)
    all_items = Items(
        [*queries.texts, *texts.texts],
        [],
        lambda row: queries.name(row) if row < count else texts.name(row - count),
    )
    both = await encode(request, model, all_items, of_texts)
    return _part(both, slice(count)), _part(both, slice(count, None))


def _part(encoded: Encoded, rows: slice) -> Encoded:
    return Encoded(
        values=encoded.values[rows],
        prompt_tokens=encoded.prompt_tokens[rows],
        dropped=encoded.dropped[rows],
    )


def _cut_indices(dropped: list[int]) -> list[int]:
    return [index for index, tokens in enumerate(dropped) if tokens]
