"""Scores of texts: for labels, or for queries, by a reranker or the similarity of vectors."""

import msgspec
import numpy as np
from starlette.requests import Request

from engine_core.client.encode_calls import Encoded
from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import JobOptions, Tokenization
from engine_core.refusal import RefusalError
from server.encoding.encode import count_usage, encode
from server.encoding.vectors import similarity
from server.schemas.common import Usage
from server.service.inputs import Items
from server.service.registry import Model
from workers.contract.model_config import ModelConfig


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """One query for all texts, or one for each of them.

    `cut_texts` says how a text is cut, whether it is embedded alone or scored with its query;
    `cut_queries` how a query is cut that is embedded alone. None: it is refused if it is too long.
    `instruction` is that of `EncodeJob`, `options` but for the tokenization are those of each job.
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


async def classify(
    request: Request, model: Model, items: Items, options: JobOptions, *, raw: bool
) -> Encoded:
    """The items with a score for each label, float32[N, L]; if `raw` its logit. Raises
    RefusalError."""
    encoded = await encode(request, model, items, options)
    if raw:
        return encoded
    scores = label_scores(encoded.values, model.served.execution.model)
    return msgspec.structs.replace(encoded, values=scores)


def label_scores(logits: FloatArray, config: ModelConfig) -> FloatArray:
    """float32[N, L] -> float32[N, L]: probabilities; but for a single label the logit, unless the
    checkpoint declares a sigmoid (as sentence-transformers' cross-encoders do)."""
    raw = config.num_labels == 1 and not config.sigmoid_scores
    return logits if raw else probabilities(logits, config)


def probabilities(logits: FloatArray, config: ModelConfig) -> FloatArray:
    """float32[N, L] -> float32[N, L]: a sigmoid for each label, or a softmax over several."""
    if config.num_labels == 1 or config.sigmoid_scores:
        return np.exp(-np.logaddexp(0, -logits))
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
