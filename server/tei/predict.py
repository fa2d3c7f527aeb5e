"""`/predict`: the labels of texts, or of pairs of texts."""

from typing import cast

import msgspec
import numpy as np
from fastapi import Request, Response

from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import JobOptions, Tokenization
from engine_core.refusal import RefusalError
from server.api.classify import CLASSIFY
from server.encoding.encode import encode
from server.encoding.label_scores import probabilities
from server.http.body import Body, CancelOnDisconnect
from server.schemas.tei import Prediction, PredictRequest
from server.service.endpoint import Endpoint
from server.service.inputs import Items, check_count
from server.service.service import Model, json_answer, record_of, service_of
from server.tei.operations import tei_operation
from server.tei.tei_errors import empty_batch, tei_errors
from server.tei.text_limit import whole_cut

PREDICT = Endpoint(
    "POST",
    "/predict",
    tei_operation(list[Prediction], list[list[Prediction]], body=PredictRequest),
    variant_of=CLASSIFY,
    order=110,
)
_body = Body(PredictRequest)


class Sequences(msgspec.Struct, frozen=True):
    """The items to classify: one or two texts each."""

    items: list[list[str]]
    in_batch: bool

    def name(self, index: int) -> str:
        """The field of an item."""
        return f"inputs[{index}]" if self.in_batch else "inputs"


@PREDICT.answered_by
@tei_errors
async def predict(request: Request) -> Response:
    """The labels of a text, a pair, or each item of a list, sorted by score, highest first."""
    service = service_of(request)
    body = await _body.read(request)
    model = service.find(record_of(request), body.model, CLASSIFY)
    sequences = _sequences(body.inputs, service.limits.max_documents)
    for index, texts in enumerate(sequences.items):
        model.text_bound.check_all(texts, lambda _, item=index: sequences.name(item))
    config = model.served.execution.model
    with CancelOnDisconnect(request.receive):
        logits = await _logits(request, model, sequences, whole_cut(model, body))
        scores = logits if body.raw_scores else probabilities(logits, config)
        predictions = [_predictions(row, config.labels) for row in scores]
        return json_answer(predictions if sequences.in_batch else predictions[0])


def _sequences(inputs: str | list[str | list[str]], max_items: int) -> Sequences:
    """A text, a pair, or a list of lists. Raises RefusalError for anything else."""
    if isinstance(inputs, str):
        found = Sequences([[inputs]], in_batch=False)
    elif not inputs:
        raise empty_batch("inputs")
    elif all(isinstance(item, str) for item in inputs):
        found = Sequences([cast("list[str]", inputs)], in_batch=False)
    elif all(isinstance(item, list) for item in inputs):
        found = Sequences(cast("list[list[str]]", inputs), in_batch=True)
    else:
        message = "inputs: expected a text, a pair of texts, or a list of lists of one or two texts"
        raise RefusalError("invalid_request", message, "inputs")
    check_count(len(found.items), "inputs", max_items)
    for index, texts in enumerate(found.items):
        if len(texts) not in (1, 2):
            name = found.name(index)
            raise RefusalError(
                "invalid_request", f"{name}: {len(texts)} texts; expected one or two", name
            )
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


def _predictions(scores: FloatArray, labels: tuple[str, ...]) -> list[Prediction]:
    order: list[int] = np.argsort(-scores, kind="stable").tolist()
    return [Prediction(float(scores[index]), labels[index]) for index in order]
