"""`/v1/classify` and `/classify`: the labels of texts."""

import msgspec
from fastapi import Request

from server.api.model_endpoint import reads
from server.encoding.encode import count_usage, job_options
from server.encoding.scores import classify
from server.schemas.common import EncodeAnswer, EncodeRequest, KeptTokens, TextOrIds
from server.service.endpoint import Endpoint, operation
from server.service.inputs import parse_items
from server.service.registry import Model
from server.service.service import service_of
from server.service.truncation import items_cut_to


class ClassifyRequest(EncodeRequest, kw_only=True, frozen=True):
    """A request of `/v1/classify`: a text, texts, one input's token ids, or inputs' token ids.

    With `use_activation` false the answer holds logits instead of probabilities.
    """

    input: TextOrIds
    truncate_prompt_tokens: KeptTokens | None = None
    use_activation: bool | None = None


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """One input: its likeliest label, and the probability of every label in the model's order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassificationList(EncodeAnswer[Classification], frozen=True, kw_only=True):
    """The answer of `/v1/classify`, in input order."""


CLASSIFY = Endpoint(
    "POST",
    "/v1/classify",
    operation(ClassificationList, ClassifyRequest),
    tasks=("classify",),
    order=60,
)
CLASSIFY_ALIAS = CLASSIFY.at("/classify", order=61)


@CLASSIFY.answered_by
@CLASSIFY_ALIAS.answered_by
@reads(ClassifyRequest, CLASSIFY)
async def create_classifications(
    request: Request, body: ClassifyRequest, model: Model
) -> ClassificationList:
    """Classify one or more texts, or lists of token ids."""
    service = service_of(request)
    items = parse_items(body.input, "input", model, service.limits.max_inputs)
    cut = items_cut_to(body.truncate_prompt_tokens, model.max_model_len)
    raw = body.use_activation is False
    classified = await classify(request, model, items, job_options(body, cut), raw=raw)
    labels = model.served.execution.model.labels
    return ClassificationList(
        id=service.new_id("classify"),
        model=model.name,
        data=[
            Classification(
                index=index,
                label=labels[int(row.argmax())],
                probs=row.tolist(),
                num_classes=len(row),
            )
            for index, row in enumerate(classified.values)
        ],
        usage=count_usage(classified),
    )
