"""How well texts fit queries: a reranker's scores, or the similarity of an embedder's vectors."""

from collections.abc import Callable
from itertools import chain

import msgspec

from engine_core.client.encode_calls import Encoded
from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import JobOptions, Tokenization
from engine_core.refusal import RefusalError
from server.encoding.encode import Query, count_usage, encode
from server.encoding.label_scores import label_scores, probabilities
from server.encoding.similarity import similarity
from server.metrics.request_record import RequestRecord
from server.schemas.common import Usage
from server.service.inputs import text_items
from server.service.registry import Model
from server.service.service import Service


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """One query for all texts, or one for each of them.

    `query_name` and `text_name` return the request's field for an index of `queries` or `texts`.
    `cut_texts` says how a text is cut, whether it is embedded alone or scored with its query;
    `cut_queries` how a query is cut that is embedded alone. None: it is refused if it is too long.
    `instruction` and `cache_salt` are those of `EncodeJob`.
    """

    queries: list[str]
    texts: list[str]
    query_name: Callable[[int], str]
    text_name: Callable[[int], str]
    cut_queries: Tokenization | None = None
    cut_texts: Tokenization | None = None
    instruction: str | None = None
    cache_salt: str | None = None

    def name(self, row: int) -> str:
        """The request's field of an entry of queries and texts together."""
        texts_from = len(self.queries)
        return self.query_name(row) if row < texts_from else self.text_name(row - texts_from)


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


async def relevance(
    service: Service, record: RequestRecord, model: Model, pairs: Pairs, *, priority: int = 0
) -> Relevance:
    """Score every pair.

    Raises RefusalError, with the request's own field and index, if admission or the engine refuses
    the job, or it fails.
    """
    model.text_bound.check_all(chain(pairs.queries, pairs.texts), pairs.name)
    if model.served.execution.scores_pairs:
        encoded = await _encode_pairs(service, record, model, pairs, priority)
        config, logits = model.served.execution.model, encoded.values
        scores = label_scores(logits, config)[:, 0]
        likely = probabilities(logits, config)[:, 0]
        return Relevance(
            scores, logits[:, 0], likely, count_usage(encoded), _cut_indices(encoded.dropped)
        )
    queries, texts = await _encode_apart(service, record, model, pairs, priority)
    scores = similarity(queries.values, texts.values, model.served.execution.model)
    prompt_tokens = count_usage(queries).prompt_tokens + count_usage(texts).prompt_tokens
    usage = Usage(prompt_tokens, prompt_tokens)
    return Relevance(scores, scores, scores, usage, _cut_indices(texts.dropped))


async def _encode_pairs(
    service: Service, record: RequestRecord, model: Model, pairs: Pairs, priority: int
) -> Encoded:
    one = len(pairs.queries) == 1
    return await encode(
        service,
        record,
        model,
        text_items(pairs.texts),
        query=Query(pairs.queries[0] if one else pairs.queries, pairs.instruction),
        options=_options(pairs, pairs.cut_texts, priority),
        name=pairs.text_name,
    )


async def _encode_apart(
    service: Service, record: RequestRecord, model: Model, pairs: Pairs, priority: int
) -> tuple[Encoded, Encoded]:
    """Queries and texts: one job, unless they are cut in different ways."""

    async def embedded(
        texts: list[str], cut: Tokenization | None, name: Callable[[int], str]
    ) -> Encoded:
        options = _options(pairs, cut, priority)
        items = text_items(texts)
        return await encode(service, record, model, items, options=options, name=name)

    if pairs.cut_queries != pairs.cut_texts:
        queries = await embedded(pairs.queries, pairs.cut_queries, pairs.query_name)
        return queries, await embedded(pairs.texts, pairs.cut_texts, pairs.text_name)
    both = await embedded([*pairs.queries, *pairs.texts], pairs.cut_texts, pairs.name)
    count = len(pairs.queries)
    return _part(both, slice(count)), _part(both, slice(count, None))


def _options(pairs: Pairs, cut: Tokenization | None, priority: int) -> JobOptions:
    return JobOptions(
        tokenization=cut or Tokenization(), cache_salt=pairs.cache_salt or "", priority=priority
    )


def _part(encoded: Encoded, rows: slice) -> Encoded:
    return Encoded(
        values=encoded.values[rows],
        prompt_tokens=encoded.prompt_tokens[rows],
        dropped=encoded.dropped[rows],
    )


def _cut_indices(dropped: list[int]) -> list[int]:
    return [index for index, tokens in enumerate(dropped) if tokens]
