"""`/pooling`: vectors, token vectors or scores of texts, as vLLM answers them."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Literal

import msgspec
import numpy as np
from fastapi import Request
from msgspec import Meta

from engine_core.client.pending_jobs import Encoded, OfTokens
from engine_core.messages import JobOptions, Tokenization
from server.api.classify import classify, classify_tokens
from server.api.declaration import answers
from server.api.embeddings import (
    AnyArray,
    EmbeddingPlan,
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
from server.api.token_outputs import token_vectors
from server.schemas.common import EncodeAnswer, invalid
from server.schemas.embeddings import EmbeddingRequest, InputType
from server.schemas.input_or_chat import InputOrChatRequest
from server.service.endpoint import Endpoint
from server.service.inputs import Items, truncation_limit
from server.service.service import Model, service_of
from workers.contract.config import Task

PoolingTask = Literal["embed", "token_embed", "classify", "token_classify"]


class PoolingRequest(InputOrChatRequest, kw_only=True, frozen=True):
    """A request of `/pooling`: a text, texts, one input's token ids, inputs' token ids, or a
    conversation."""

    """Example: {"input": "Water.", "model": "tiny", "task": "token_embed"}"""

    task: PoolingTask | None = None
    """An embedder's `"embed"`, its vector of each input, or `"token_embed"`, its state of each
    token, or ColBERT's and BGE-M3's [vectors of tokens](#vectors-of-tokens), at most 4,194,304
    numbers; a classifier's or reranker's `"classify"`, a score for each label; `"token_classify"`
    of a model that labels tokens, a score of each token for each label, or of BGE-M3, each token's
    lexical weight. Others: 400. Default: the model's first."""
    encoding_format: Literal["float", "base64"] | None = None
    """`"float"`, or `"base64"`: each input's numbers in bytes, little-endian. Default:
    `"float"`."""
    embed_dtype: Literal["float32", "float16"] | None = None
    """`"float32"` or `"float16"`. Default: `"float32"`."""
    use_activation: bool | None = None
    """True: vectors, of tokens too, have length 1; false: they are as computed, as in
    [`/embed_all`](#tei), and scores are logits. Default: the model's; true for vectors of tokens of
    ColBERT and BGE-M3."""
    input_type: InputType | None = None
    """As for [embeddings](#post-v1embeddings). Token vectors of ColBERT are a query's with
    `"query"` or `"search_query"`, else a document's."""
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


_TASKS: tuple[Task, ...] = ("embed", "embed_tokens", "classify", "classify_tokens")


@answers(Endpoint("POST", "/pooling", "Jina, vLLM", tasks=_TASKS, order=65))
async def create_poolings(request: Request, body: PoolingRequest, model: Model) -> PoolingList:
    """Embed texts or their tokens, or classify texts. A chat is the text of its prompt."""
    service = service_of(request)
    task = _task(body, model)
    asked, field = await rendered(request, body, model)
    arrays, encoded = await _POOLED[task](request, model, asked, field)
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
    tasks = _TASKS_OF[model.served.execution.task]
    if "token_weights" in model.served.execution.model.token_modules:
        tasks = (*tasks, "token_classify")
    task = body.task or tasks[0]
    if task not in tasks:
        raise invalid("task", f"model {model.name} serves {' and '.join(tasks)}, not {task}")
    return task


async def _vectors(request: Request, model: Model, body: PoolingRequest, field: str) -> Pooled:
    """Vectors of items: those of a request of `/v1/embeddings`."""
    plan = _plan(request, model, body, field)
    encoded = await planned_vectors(request, model, plan)
    return quantize(encoded.values, plan.dtype), encoded


async def _vectors_of_tokens(
    request: Request, model: Model, body: PoolingRequest, field: str
) -> Pooled:
    """Vectors of each item's tokens: their states, if the model has no others."""
    plan = _plan(request, model, body, field)
    if "token_vectors" in model.served.execution.model.token_modules:
        normalize = body.use_activation is not False
        query = body.input_type in ("query", "search_query")
        rows, encoded = await token_vectors(request, model, plan.items, plan.options, query=query)
    else:
        normalize = plan.normalize
        encoded = await encode(
            request, model, plan.items, plan.options, of_tokens=OfTokens(("states",))
        )
        rows = encoded.rows
    rows = [shorten(own, own.shape[1], normalize=normalize) for own in rows]
    return [quantize(own, plan.dtype) for own in rows], encoded


def _plan(request: Request, model: Model, body: PoolingRequest, field: str) -> EmbeddingPlan:
    asked = msgspec.convert(body, EmbeddingRequest, from_attributes=True)
    return embedding_plan(asked, model, service_of(request).limits, field)


async def _scores(request: Request, model: Model, body: PoolingRequest, field: str) -> Pooled:
    items, options = _classified(request, model, body, field)
    raw = body.use_activation is False
    encoded, scores = await classify(request, model, items, options, raw=raw)
    return quantize(scores, body.embed_dtype or "float32"), encoded


async def _scores_of_tokens(
    request: Request, model: Model, body: PoolingRequest, field: str
) -> Pooled:
    """Each token's score for each label, or its lexical weight: those without the special tokens
    around a text, as vLLM has them."""
    items, options = _classified(request, model, body, field)
    dtype, rows = body.embed_dtype or "float32", list[AnyArray]()
    if model.served.execution.task == "classify_tokens":
        raw = body.use_activation is False
        encoded, rows = await classify_tokens(request, model, items, options, raw=raw)
        return [quantize(own, dtype) for own in rows], encoded
    encoded = await encode(request, model, items, options, of_tokens=OfTokens(("token_weights",)))
    for weights, ids in zip(encoded.rows, encoded.prompt_ids, strict=True):
        tokens = np.frombuffer(ids, np.int32)
        inner = slice(
            int(tokens[0] in model.special_ids),
            len(tokens) - int(tokens[-1] in model.special_ids),
        )
        rows.append(quantize(weights[inner], dtype)[:, 0])
    return rows, encoded


def _classified(
    request: Request, model: Model, body: PoolingRequest, field: str
) -> tuple[Items, JobOptions]:
    items = input_items(body, field, model, service_of(request).limits)
    longest = model.max_model_len
    tokenization = Tokenization(
        add_special_tokens=body.add_special_tokens is not False,
        truncate_to=truncation_limit(body.truncate_prompt_tokens, longest, longest=longest),
        truncation_side=body.truncation_side or "right",
    )
    return items, job_options(body, tokenization)


_POOLED: Mapping[PoolingTask, Callable[..., Awaitable[Pooled]]] = {
    "embed": _vectors,
    "token_embed": _vectors_of_tokens,
    "classify": _scores,
    "token_classify": _scores_of_tokens,
}
_TASKS_OF: Mapping[Task, tuple[PoolingTask, ...]] = {
    "embed": ("embed", "token_embed"),
    "embed_tokens": ("token_embed",),
    "classify": ("classify",),
    "classify_tokens": ("token_classify",),
}
