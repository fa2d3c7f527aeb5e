"""`/v1/classify` and `/classify`: the labels of texts."""

import msgspec
import numpy as np
from fastapi import Request
from msgspec.structs import replace

from engine_core.client.pending_jobs import Encoded, FloatArray, OfTokens
from engine_core.messages import JobOptions
from server.api.declaration import answers
from server.api.encode import count_usage, encode, job_options
from server.api.input_or_chat import input_items, rendered
from server.schemas.common import EncodeAnswer
from server.schemas.input_or_chat import InputOrChatRequest
from server.service.endpoint import Endpoint
from server.service.inputs import Items, items_cut_to
from server.service.service import Model, service_of
from workers.contract.config import Task
from workers.contract.model_config import ModelConfig


class ClassifyRequest(InputOrChatRequest, kw_only=True, frozen=True):
    """A request of `/v1/classify`: a text, texts, one input's token ids, inputs' token ids, or a
    conversation."""

    """Example: {"input": "What a day!", "model": "moods"}"""

    use_activation: bool | None = None
    """False: `probs` are the model's logits. Default: true."""


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """One input: its likeliest label, and the probability of every label in the model's order. A
    model that labels tokens has a label and probabilities for each, special tokens included."""

    index: int
    """Number of the pair or input."""
    label: str | list[str]
    """The likeliest label."""
    probs: list[float | list[float]]
    """Each label's probability, in the model's order; logits where the activation is left out."""
    num_classes: int
    """How many labels the model has."""


class ClassificationList(EncodeAnswer[Classification], frozen=True, kw_only=True):
    """The answer of `/v1/classify`, in input order."""


_TASKS: tuple[Task, ...] = ("classify", "classify_tokens")


@answers(Endpoint("POST", "/v1/classify", "Jina, vLLM", tasks=_TASKS, order=60))
async def create_classifications(
    request: Request, body: ClassifyRequest, model: Model
) -> ClassificationList:
    """Classify one or more texts, or lists of token ids, or the prompt of a chat."""
    service = service_of(request)
    asked, field = await rendered(request, body, model)
    items = input_items(asked, field, model, service.limits)
    tokenization = replace(
        items_cut_to(body.truncate_prompt_tokens, model.max_model_len),
        add_special_tokens=asked.add_special_tokens is not False,
    )
    raw = body.use_activation is False
    options = job_options(body, tokenization)
    scored = classify_tokens if model.served.execution.task == "classify_tokens" else classify
    classified, rows = await scored(request, model, items, options, raw=raw)
    labels = np.array(model.served.execution.model.labels)
    return ClassificationList(
        id=service.new_id("classify"),
        model=model.name,
        data=[
            Classification(
                index=index,
                label=labels[row.argmax(axis=-1)].tolist(),
                probs=row.tolist(),
                num_classes=row.shape[-1],
            )
            for index, row in enumerate(rows)
        ],
        usage=count_usage(classified),
    )


classify_alias = create_classifications.at("/classify", order=61)


async def classify(
    request: Request, model: Model, items: Items, options: JobOptions, *, raw: bool
) -> tuple[Encoded, FloatArray]:
    """Score the items for each label, float32[N, L]: logits if `raw`. Raises RefusalError."""
    encoded = await encode(request, model, items, options)
    values = encoded.values
    return encoded, values if raw else label_scores(values, model.served.execution.model)


async def classify_tokens(
    request: Request, model: Model, items: Items, options: JobOptions, *, raw: bool
) -> tuple[Encoded, list[FloatArray]]:
    """Score each token of the items for each label, float32[tokens, L]: logits if `raw`. Raises
    RefusalError."""
    encoded = await encode(request, model, items, options, of_tokens=OfTokens(("token_vectors",)))
    config = model.served.execution.model
    return encoded, [own if raw else probabilities(own, config) for own in encoded.rows]


def label_scores(logits: FloatArray, config: ModelConfig) -> FloatArray:
    """float32[N, L] -> float32[N, L]: probabilities, but a single label's logit unless the
    checkpoint declares a sigmoid, as sentence-transformers' cross-encoders do."""
    raw = config.num_labels == 1 and not config.sigmoid_scores
    return logits if raw else probabilities(logits, config)


def probabilities(logits: FloatArray, config: ModelConfig) -> FloatArray:
    """float32[N, L] -> float32[N, L]: a sigmoid for each label, or a softmax over several."""
    if config.num_labels == 1 or config.sigmoid_scores:
        return np.exp(-np.logaddexp(0, -logits))
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)
