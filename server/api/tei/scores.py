"""`/predict`, labels of texts or of pairs of texts, and `/rerank`, which is also our own."""

from typing import cast

import msgspec
import numpy as np
from fastapi import Request, Response

from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import JobOptions, Tokenization
from engine_core.refusal import RefusalError
from server.api.classify import CLASSIFY, probabilities
from server.api.encode import encode, texts_cut_to
from server.api.model_endpoint import reads
from server.api.relevance import RERANK, Pairs, create_reranking, relevance
from server.api.tei import protocol as tei
from server.schemas.common import invalid
from server.schemas.rerank import Reranking, RerankRequest
from server.service.endpoint import operation
from server.service.inputs import Items, check_count, text_items
from server.service.service import Model, record_of, service_of

PREDICT = CLASSIFY.at(
    "/predict",
    tei.operation_of(list[tei.Prediction], list[list[tei.Prediction]], body=tei.PredictRequest),
    order=110,
)
RERANK_TEXTS = RERANK.at(
    "/rerank",
    tei.either_operation(
        operation(Reranking, RerankRequest),
        tei.operation_of(list[tei.Rank], body=tei.RerankTextsRequest),
    ),
    order=120,
)


class Sequences(msgspec.Struct, frozen=True):
    """The items to classify: one or two texts each."""

    items: list[list[str]]
    in_batch: bool

    def name(self, index: int) -> str:
        """The field of an item."""
        return f"inputs[{index}]" if self.in_batch else "inputs"


@PREDICT.answered_by
@tei.errors
@reads(tei.PredictRequest, CLASSIFY)
async def predict(
    request: Request, body: tei.PredictRequest, model: Model
) -> list[tei.Prediction] | list[list[tei.Prediction]]:
    """The labels of a text, a pair, or each item of a list, sorted by score, highest first."""
    sequences = _sequences(body.inputs, service_of(request).limits.max_documents)
    for index, texts in enumerate(sequences.items):
        model.text_bound.check_all(texts, lambda _, item=index: sequences.name(item))
    config = model.served.execution.model
    logits = await _logits(request, model, sequences, tei.whole_cut(model, body))
    scores = logits if body.raw_scores else probabilities(logits, config)
    predictions = [_predictions(row, config.labels) for row in scores]
    return predictions if sequences.in_batch else predictions[0]


def _sequences(inputs: str | list[str | list[str]], max_items: int) -> Sequences:
    """A text, a pair, or a list of lists. Raises RefusalError for anything else."""
    if isinstance(inputs, str):
        found = Sequences([[inputs]], in_batch=False)
    elif not inputs:
        raise tei.empty_batch("inputs")
    elif all(isinstance(item, str) for item in inputs):
        found = Sequences([cast("list[str]", inputs)], in_batch=False)
    elif all(isinstance(item, list) for item in inputs):
        found = Sequences(cast("list[list[str]]", inputs), in_batch=True)
    else:
        raise invalid(
            "inputs", "expected a text, a pair of texts, or a list of lists of one or two texts"
        )
    check_count(len(found.items), "inputs", max_items)
    for index, texts in enumerate(found.items):
        if len(texts) not in (1, 2):
            name = found.name(index)
            raise invalid(name, f"{len(texts)} texts; expected one or two")
    return found


async def _logits(
    request: Request, model: Model, sequences: Sequences, cut: Tokenization
) -> FloatArray:
    """float32[N, L]: single texts are one job, pairs another."""
    logits = np.empty((len(sequences.items), model.served.execution.model.num_labels), np.float32)
    options = JobOptions(tokenization=cut)
    for size in (1, 2):
        found = [(i, texts) for i, texts in enumerate(sequences.items) if len(texts) == size]
        if not found:
            continue
        indices, texts = zip(*found, strict=True)
        query = [first for first, _ in texts] if size == 2 else None
        names = [sequences.name(index) for index in indices]
        last = Items([each[-1] for each in texts], [], names.__getitem__)
        encoded = await encode(request, model, last, options, query=query)
        logits[[*indices]] = encoded.values
    return logits


def _predictions(scores: FloatArray, labels: tuple[str, ...]) -> list[tei.Prediction]:
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return [tei.Prediction(float(scores[index]), labels[index]) for index in order]


@RERANK_TEXTS.answered_by
async def rerank(request: Request) -> Response:
    """Score texts against a query, for clients of TEI, Cohere and others."""
    fields = await tei.fields_of(request)
    is_tei = "texts" in fields and "documents" not in fields
    return await (_rerank_texts if is_tei else create_reranking)(request)


def _reranker(request: Request, name: str | None) -> Model:
    """The one of that name, or the only reranker, or if there is none the only embedder. Raises
    RefusalError otherwise."""
    service = service_of(request)
    if name is None:
        rerankers = [
            model.name
            for model in service.registry.models
            if model.served.execution.scores_pairs and RERANK.is_served_by(model.served.execution)
        ]
        if len(rerankers) > 1:
            names = ", ".join(rerankers)
            raise RefusalError("model_required", f"several models serve this endpoint: {names}")
        name = next(iter(rerankers), None)
    return service.find(record_of(request), name, RERANK)


@tei.errors
@reads(tei.RerankTextsRequest, _reranker)
async def _rerank_texts(
    request: Request, body: tei.RerankTextsRequest, model: Model
) -> list[tei.Rank]:
    if not body.texts:
        raise tei.empty_batch("texts")
    check_count(len(body.texts), "texts", service_of(request).limits.max_documents)
    cut: Tokenization | None = None
    if body.truncate:
        query = body.query if model.served.execution.scores_pairs else None
        cut = await texts_cut_to(model, model.max_model_len, query=query, side=tei.side(body))
    pairs = Pairs(
        queries=text_items(body.query, "query"),
        texts=text_items(body.texts, "texts"),
        cut_texts=cut,
    )
    found = await relevance(request, model, pairs)
    scores = found.raw_scores if body.raw_scores else found.probabilities
    best: list[int] = np.argsort(-found.raw_scores, kind="stable").tolist()
    texts = body.texts if body.return_text else [None] * len(body.texts)
    return [tei.Rank(index=index, score=float(scores[index]), text=texts[index]) for index in best]
