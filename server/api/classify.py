"""`/v1/classify` and `/classify`: the labels of texts."""

from fastapi import Request, Response

from engine_core.client.pending_jobs import FloatArray
from engine_core.messages import JobOptions
from server.encoding.encode import count_usage, encode
from server.encoding.label_scores import label_scores
from server.http.body import Body, CancelOnDisconnect
from server.schemas.classify import (
    Classification,
    ClassificationList,
    ClassifyRequest,
)
from server.service.endpoint import Endpoint, operation
from server.service.inputs import items_cut_to, parse_items
from server.service.service import json_answer, record_of, service_of

CLASSIFY = Endpoint(
    "POST",
    "/v1/classify",
    operation(ClassificationList, ClassifyRequest),
    tasks=("classify",),
    order=60,
)
CLASSIFY_ALIAS = CLASSIFY.at("/classify", order=61)
_body = Body(ClassifyRequest)


@CLASSIFY.answered_by
@CLASSIFY_ALIAS.answered_by
async def create_classifications(request: Request) -> Response:
    """Classify one or more texts, or lists of token ids."""
    service, record = service_of(request), record_of(request)
    body = await _body.read(request)
    model = service.find(record, body.model, CLASSIFY, body.priority or 0)
    items = parse_items(body.input, "input", model, service.limits.max_inputs)
    tokenization = items_cut_to(body.truncate_prompt_tokens, model.max_model_len)
    config = model.served.execution.model
    with CancelOnDisconnect(request.receive):
        encoded = await encode(
            request,
            model,
            items,
            JobOptions(tokenization=tokenization, priority=body.priority or 0),
        )
        raw = body.use_activation is False
        scores = encoded.values if raw else label_scores(encoded.values, config)
        return json_answer(
            ClassificationList(
                id=service.new_id("classify"),
                model=model.name,
                data=_classifications(scores, config.labels),
                usage=count_usage(encoded),
            )
        )


def _classifications(scores: FloatArray, labels: tuple[str, ...]) -> list[Classification]:
    return [
        Classification(
            index=index, label=labels[int(row.argmax())], probs=row.tolist(), num_classes=len(row)
        )
        for index, row in enumerate(scores)
    ]
