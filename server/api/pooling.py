"""`/pooling`: vectors, token vectors or scores of texts, as vLLM answers them."""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
import numpy as np
from fastapi import Request
from msgspec import Meta

from engine_core.client.pending_jobs import Encoded
from engine_core.messages import Tokenization
from server.api.classify import classify
from server.api.declaration import answers
from server.api.embeddings import (
    AnyArray,
    embedding_plan,
    in_base64,
    in_lists,
    planned_vectors,
    quantize,
    rows_in_json,
    shorten,
)
from server.api.encode import count_usage, encode, job_options
from server.api.input_or_chat import input_items, rendered
from server.schemas.common import EncodeAnswer, invalid
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.input_or_chat import InputOrChatRequest
from server.service.endpoint import Endpoint
from server.service.inputs import truncation_limit
from server.service.service import Model, service_of

PoolingTask = Literal["embed", "token_embed", "classify"]


class PoolingRequest(InputOrChatRequest, kw_only=True, frozen=True):
    """A request of `/pooling`: a text, texts, one input's token ids, inputs' token ids, or a
    conversation."""

    """Example: {"input": "Water.", "model": "tiny", "task": "token_embed"}"""

    task: PoolingTask | None = None
    """An embedder's `"embed"`, its vector of each input, or `"token_embed"`, its state of each
    token, special tokens included, at most 4,194,304 numbers; a classifier's or reranker's
    `"classify"`, a score for each label. Others: 400. Default: the model's first."""
    encoding_format: Literal["float", "base64"] | None = None
    """`"float"`, or `"base64"`: each input's numbers in bytes, little-endian. Default:
    `"float"`."""
    embed_dtype: Literal["float32", "float16"] | None = None
    """`"float32"` or `"float16"`. Default: `"float32"`."""
    use_activation: bool | None = None
    """True: vectors, of tokens too, have length 1; false: they are as computed, as in
    [`/embed_all`](#tei), and scores are logits. Default: the model's."""
    truncation_side: Literal["left", "right"] | None = None
    """`"right"` removes the end, `"left"` the beginning. Default: `"right"`."""


PoolingData = Annotated[
    msgspec.Raw,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"type": "array", "items": {"type": "number"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                {"type": "string"},
            ]
        }
    ),
]
"""A vector or scores, a vector for each token, or the bytes of either in base64."""


class Pooling(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one input."""

    object: str = "pooling"
    """The kind of entry: `score`, or `pooling`."""
    index: int
    """Number of the pair or input."""
    data: PoolingData
    """A vector, one for each token, or probabilities, by task: numbers, or in base64."""


class PoolingList(EncodeAnswer[Pooling], frozen=True, kw_only=True):
    """The answer of `/pooling`, in input order."""


Pooled = tuple[Iterable[AnyArray], Encoded]
"""Each item's numbers in the type requested, [D] or [tokens, D], and the engine's answer."""


@answers(Endpoint("POST", "/pooling", "Jina, vLLM", tasks=("embed", "classify"), order=65))
async def create_poolings(request: Request, body: PoolingRequest, model: Model) -> PoolingList:
    """Embed texts or their tokens, or classify texts. A chat is the text of its prompt."""
    service = service_of(request)
    pooled = _scores if _task(body, model) == "classify" else _vectors
    asked, field = await rendered(request, body, model)
    arrays, encoded = await pooled(request, model, asked, field)
    form = in_base64 if body.encoding_format == "base64" else in_lists
    rows = await rows_in_json(arrays, form)
    return PoolingList(
        id=service.new_id("pool"),
        model=model.name,
        data=[Pooling(index=index, data=row) for index, row in enumerate(rows)],
        usage=count_usage(encoded),
    )


def _task(body: PoolingRequest, model: Model) -> PoolingTask:
    """The request's, or that of its model. Raises RefusalError for one that the model has not."""
    is_embedder = model.served.execution.task == "embed"
    tasks: tuple[PoolingTask, ...] = ("embed", "token_embed") if is_embedder else ("classify",)
    task = body.task or tasks[0]
    if task not in tasks:
        raise invalid("task", f"model {model.name} serves {' and '.join(tasks)}, not {task}")
    return task


async def _vectors(request: Request, model: Model, body: PoolingRequest, field: str) -> Pooled:
    """Vectors of items, or of their tokens: those of a request of `/v1/embeddings`."""
    asked = msgspec.convert(body, EmbeddingRequest, from_attributes=True)
    plan = embedding_plan(asked, model, service_of(request).limits, field)
    if body.task != "token_embed":
        encoded = await planned_vectors(request, model, plan)
        return quantize(encoded.values, plan.dtype), encoded
    encoded = await encode(request, model, plan.items, plan.options, token_states=True)
    states = shorten(encoded.values, encoded.values.shape[1], normalize=plan.normalize)
    ends = np.cumsum(encoded.prompt_tokens)
    return np.split(quantize(states, plan.dtype), ends[:-1]), encoded


async def _scores(request: Request, model: Model, body: PoolingRequest, field: str) -> Pooled:
    items = input_items(body, field, model, service_of(request).limits)
    longest = model.max_model_len
    tokenization = Tokenization(
        add_special_tokens=body.add_special_tokens is not False,
        truncate_to=truncation_limit(body.truncate_prompt_tokens, longest, longest=longest),
        truncation_side=body.truncation_side or "right",
    )
    raw = body.use_activation is False
    scores = await classify(request, model, items, job_options(body, tokenization), raw=raw)
    return quantize(scores.values, body.embed_dtype or "float32"), scores
