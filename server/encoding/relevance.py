"""How well texts fit queries: a reranker's scores, or the similarity of an embedder's vectors."""

import msgspec
from starlette.requests import Request

from engine_core.client.pending_jobs import Encoded, FloatArray
from engine_core.messages import JobOptions, Tokenization
from engine_core.refusal import RefusalError
from server.encoding.encode import count_usage, encode
from server.encoding.label_scores import label_scores, probabilities
from server.encoding.similarity import similarity
from server.schemas.common import Usage
from server.service.inputs import Items
from server.service.service import Model


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """One query for all texts, or one for each of them.

    `cut_texts` says how a text is cut, whether it is embedded alone or scored with its query;
    `cut_queries` how a query is cut that is embedded alone. None: it is refused if it is too long.
    `instruction`, `cache_salt` and `priority` are those of `EncodeJob`.
    """

    queries: Items
    texts: Items
    cut_queries: Tokenization | None = None
    cut_texts: Tokenization | None = None
    instruction: str | None = None
    cache_salt: str | None = None
    priority: int | None = None

    def options(self, cut: Tokenization | None) -> JobOptions:
        """Those of a job whose texts are cut so."""
        return JobOptions(
            tokenization=cut or Tokenization(),
            cache_salt=self.cache_salt or "",
            priority=self.priority or 0,
        )


class Relevance(msgspec.Struct, frozen=True):
    """One score a pair, float32[N], in three forms; the usage; the indices of texts that were cut.

    A classifier's `scores` are what its checkpoint defines, `raw_scores` its logits, and
    `probabilities` lie between 0 and 1. For an embedder all three are the similarities.
    """

    scores: FloatArray
    raw_scores: FloatArray
    probabilities: FloatArray
    usage: Usage
    cut: list[int]


def checked_instruction(model: Model, instruction: str | None) -> str | None:
    """The instruction of a request. Raises RefusalError if the model takes none; an empty one is
    none for such a model."""
    reranking = model.served.execution.model.reranking
    if reranking is not None and reranking.known_template.takes_instruction:
        return instruction
    if instruction:
        reason = f"instruction: model {model.name} has no template that takes one"
        raise RefusalError("invalid_request", reason, "instruction")
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
            pairs.options(pairs.cut_texts),
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
    of_texts = pairs.options(pairs.cut_texts)
    if pairs.cut_queries != pairs.cut_texts:
        of_queries = pairs.options(pairs.cut_queries)
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
