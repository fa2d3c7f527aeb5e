"""`/pooling`: vectors, token vectors or scores of texts, as vLLM answers them."""

from collections.abc import Iterable

import numpy as np
from fastapi import Request, Response

from engine_core.client.pending_jobs import Encoded
from engine_core.messages import JobOptions, Tokenization
from engine_core.refusal import RefusalError
from server.encoding.embedding_plan import embedding_plan, planned_vectors
from server.encoding.encode import count_usage, encode
from server.encoding.label_scores import label_scores
from server.encoding.vector_json import in_base64, in_lists, rows_in_json
from server.encoding.vectors import AnyArray, quantize, shorten
from server.http.body import Body, CancelOnDisconnect
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.pooling.pooling_request import (
    Pooling,
    PoolingList,
    PoolingRequest,
    PoolingTask,
)
from server.service.endpoint import Endpoint, operation
from server.service.inputs import parse_items, truncation_limit
from server.service.service import Model, json_answer, record_of, service_of
from server.settings.settings import Limits

POOLING = Endpoint(
    "POST",
    "/pooling",
    operation(PoolingList, PoolingRequest),
    tasks=("embed", "classify"),
    order=65,
)
_body = Body(PoolingRequest)

Pooled = tuple[Iterable[AnyArray], Encoded]
"""What each item is pooled to, of the type requested: [D] numbers, or [tokens, D]; and the answer
from which it was made."""


@POOLING.answered_by
async def create_poolings(request: Request) -> Response:
    """Embed texts or their tokens, or classify texts."""
    service = service_of(request)
    body = await _body.read(request)
    model = service.find(record_of(request), body.model, POOLING, body.priority or 0)
    task = _task(body, model)
    pooled = _scores if task == "classify" else _vectors
    with CancelOnDisconnect(request.receive):
        arrays, encoded = await pooled(request, model, body, service.limits)
        form = in_base64 if body.encoding_format == "base64" else in_lists
        rows = await rows_in_json(arrays, form)
        return json_answer(
            PoolingList(
                id=service.new_id("pool"),
                model=model.name,
                data=[Pooling(index=index, data=row) for index, row in enumerate(rows)],
                usage=count_usage(encoded),
            )
        )


def _task(body: PoolingRequest, model: Model) -> PoolingTask:
    """The request's, or that of its model. Raises RefusalError for one that the model has not."""
    is_embedder = model.served.execution.task == "embed"
    tasks: tuple[PoolingTask, ...] = ("embed", "token_embed") if is_embedder else ("classify",)
    task = body.task or tasks[0]
    if task not in tasks:
        message = f"task: model {model.name} serves {' and '.join(tasks)}, not {task}"
        raise RefusalError("invalid_request", message, "task")
    return task


async def _vectors(request: Request, model: Model, body: PoolingRequest, limits: Limits) -> Pooled:
    """Vectors of items, or of their tokens: those of a request of `/v1/embeddings`."""
    embedding_request = EmbeddingRequest(
        input=body.input,
        embed_dtype=body.embed_dtype,
        use_activation=body.use_activation,
        add_special_tokens=body.add_special_tokens,
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        truncation_side=body.truncation_side,
        cache_salt=body.cache_salt,
        priority=body.priority,
    )
    plan = embedding_plan(embedding_request, model, limits)
    if body.task != "token_embed":
        encoded = await planned_vectors(request, model, plan)
        return quantize(encoded.values, plan.dtype), encoded
    encoded = await encode(request, model, plan.items, plan.options, token_states=True)
    states = shorten(encoded.values, encoded.values.shape[1], normalize=plan.normalize)
    ends = np.cumsum(encoded.prompt_tokens)
    return np.split(quantize(states, plan.dtype), ends[:-1]), encoded


async def _scores(request: Request, model: Model, body: PoolingRequest, limits: Limits) -> Pooled:
    items = parse_items(body.input, "input", model, limits.max_inputs)
    longest = model.max_model_len
    options = JobOptions(
        tokenization=Tokenization(
            add_special_tokens=body.add_special_tokens is not False,
            truncate_to=truncation_limit(body.truncate_prompt_tokens, longest, longest=longest),
            truncation_side=body.truncation_side or "right",
        ),
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
    )
    logits = (encoded := await encode(request, model, items, options)).values
    config = model.served.execution.model
    scores = logits if body.use_activation is False else label_scores(logits, config)
    return quantize(scores, body.embed_dtype or "float32"), encoded
