"""`/v1/score` and `/score`: how well second texts fit first ones, pair by pair."""

from typing import Annotated

import msgspec
from fastapi import Request
from msgspec import Meta

from engine_core.refusal import RefusalError
from server.api.model_endpoint import reads
from server.encoding.encode import job_options
from server.encoding.scores import Pairs, checked_instruction, relevance
from server.schemas.common import EncodeAnswer, EncodeRequest, KeptTokens, given_twice
from server.service.endpoint import Endpoint, operation
from server.service.inputs import check_count, text_items
from server.service.registry import Model
from server.service.service import service_of
from server.service.truncation import items_cut_to

Texts = str | Annotated[list[str], Meta(min_length=1)]


class ScoreRequest(EncodeRequest, kw_only=True, frozen=True):
    """A request of `/v1/score`: one first text for all second ones, or as many of both.

    `queries` and `documents` are other names of `text_1` and `text_2`. With `use_activation`
    false the answer holds the model's logits, without the activation of its checkpoint.
    `instruction` replaces the default of a reranker whose template has one.
    """

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    truncate_prompt_tokens: KeptTokens | None = None
    use_activation: bool | None = None
    instruction: str | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One pair's score; `index` is that of its second text."""

    index: int
    object: str = "score"
    score: float


class ScoreList(EncodeAnswer[Score], frozen=True, kw_only=True):
    """The answer of `/v1/score`, in the order of the request."""


SCORE = Endpoint(
    "POST",
    "/v1/score",
    operation(ScoreList, ScoreRequest),
    tasks=("embed", "classify", "rerank"),
    relevance=True,
    order=50,
)
SCORE_ALIAS = SCORE.at("/score", order=51)


@SCORE.answered_by
@SCORE_ALIAS.answered_by
@reads(ScoreRequest, SCORE)
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


def _pairs(body: ScoreRequest, model: Model, max_pairs: int) -> Pairs:
    """The pairs of a request. Raises RefusalError where texts are missing or do not pair up."""
    first_name, firsts = _either(("text_1", body.text_1), ("queries", body.queries))
    second_name, seconds = _either(("text_2", body.text_2), ("documents", body.documents))
    queries, texts = text_items(firsts, first_name), text_items(seconds, second_name)
    check_count(len(texts), second_name, max_pairs)
    if len(queries) not in (1, len(texts)):
        raise RefusalError(
            "invalid_request",
            f"{first_name}: {len(queries)} texts, but {second_name} has {len(texts)}; "
            "give one text, or one for each",
            first_name,
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
        raise RefusalError("invalid_request", f"{one[0]}: is required", one[0])
    if len(given) > 1:
        raise given_twice(one[0], other[0])
    return given[0]
