"""`/v1/score` and `/score`: how well second texts fit first ones, pair by pair."""

from fastapi import Request, Response

from engine_core.refusal import RefusalError
from server.encoding.relevance import Pairs, checked_instruction, relevance
from server.http.body import Body, CancelOnDisconnect
from server.schemas.field_names import given_twice
from server.schemas.score import Score, ScoreList, ScoreRequest, Texts
from server.service.endpoint import Endpoint, operation
from server.service.inputs import check_count, items_cut_to, text_items
from server.service.service import Model, json_answer, record_of, service_of

SCORE = Endpoint(
    "POST",
    "/v1/score",
    operation(ScoreList, ScoreRequest),
    tasks=("embed", "classify", "rerank"),
    relevance=True,
    order=50,
)
SCORE_ALIAS = SCORE.at("/score", order=51)
_body = Body(ScoreRequest)


@SCORE.answered_by
@SCORE_ALIAS.answered_by
async def create_scores(request: Request) -> Response:
    """Score pairs of texts: by a reranker, or the similarity of vectors."""
    service, record = service_of(request), record_of(request)
    body = await _body.read(request)
    model = service.find(record, body.model, SCORE, body.priority or 0)
    pairs = _pairs(body, model, service.limits.max_documents)
    with CancelOnDisconnect(request.receive):
        found = await relevance(request, model, pairs)
        scores = found.raw_scores if body.use_activation is False else found.scores
        return json_answer(
            ScoreList(
                id=service.new_id("score"),
                model=model.name,
                data=[
                    Score(index=index, score=score) for index, score in enumerate(scores.tolist())
                ],
                usage=found.usage,
            )
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
        cache_salt=body.cache_salt,
        priority=body.priority,
    )


def _either(one: tuple[str, Texts | None], other: tuple[str, Texts | None]) -> tuple[str, Texts]:
    """The field that is given, with its name. Raises RefusalError for both, and for neither."""
    given = [(name, value) for name, value in (one, other) if value is not None]
    if not given:
        raise RefusalError("invalid_request", f"{one[0]}: is required", one[0])
    if len(given) > 1:
        raise given_twice(one[0], other[0])
    return given[0]
