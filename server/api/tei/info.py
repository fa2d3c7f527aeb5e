"""`/info` and `POST /`: the model behind TEI's endpoints, and its task."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Request, Response
from msgspec import Raw

from server import __version__
from server.api.classify import CLASSIFY
from server.api.relevance import RERANK
from server.api.tei import protocol as tei
from server.api.tei.embed import embed, embed_sparse, the_embedder, the_sparse_embedder
from server.api.tei.scores import predict, rerank
from server.service.endpoint import Endpoint
from server.service.service import Model, json_answer, record_of, service_of

INFO = Endpoint("GET", "/info", tei.operation_of(tei.Info), order=130)
ROOT = Endpoint("POST", "/", tei.operation_of(Any, body=tei.EmbedRequest), order=140)


@INFO.answered_by
@tei.errors
async def get_info(request: Request) -> Response:
    """The model that answers, and the limits of a request."""
    model, limits = described(request), service_of(request).limits
    execution = model.served.execution
    embeds = execution.task in ("embed", "embed_sparse")
    return json_answer(
        tei.Info(
            model_id=model.name,
            model_dtype=execution.dtype,
            served_model_name=model.name,
            model_type=_model_type(model),
            max_concurrent_requests=limits.max_sequences,
            max_input_length=model.max_model_len,
            max_batch_tokens=execution.max_step_tokens,
            max_client_batch_size=limits.max_inputs if embeds else limits.max_documents,
            version=__version__,
        )
    )


def described(request: Request) -> Model:
    """The only embedder, or else the only one with SPLADE pooling, or else the only classifier.

    Raises RefusalError where none is there, or several are.
    """
    service = service_of(request)
    if service.registry.has_task("embed"):
        return the_embedder(request)
    if service.registry.has_task("embed_sparse"):
        return the_sparse_embedder(request)
    return service.find(record_of(request), None, CLASSIFY)


def _model_type(model: Model) -> tei.ModelType:
    config = model.served.execution.model
    if model.served.execution.task == "embed":
        # In TEI's words, where it has one: it pools neither by weights nor in several ways at once.
        modes = ("last_token" if mode == "lasttoken" else mode for mode in config.pooling.modes)
        return tei.ModelType(embedding=tei.EmbeddingType("+".join(modes)))
    if model.served.execution.task == "embed_sparse":
        return tei.ModelType(embedding=tei.EmbeddingType("splade"))
    labels = tei.ClassifierType(
        {str(index): label for index, label in enumerate(config.labels)},
        {label: index for index, label in enumerate(config.labels)},
    )
    ranks = model.served.execution.scores_relevance
    return tei.ModelType(reranker=labels) if ranks else tei.ModelType(classifier=labels)


@ROOT.answered_by
@tei.errors
async def answer(request: Request) -> Response:
    """`/embed` if there is an embedder, or else `/embed_sparse`, or else `/rerank` for a reranker
    and `/predict` for any other classifier. With `model` that of the task of the named one."""
    fields = await tei.fields_of(request)
    execution = _model(request, fields).served.execution
    if execution.task == "embed":
        return await embed(request)
    if execution.task == "embed_sparse":
        return await embed_sparse(request)
    return await (rerank if RERANK.is_served_by(execution) else predict)(request)


def _model(request: Request, fields: Mapping[str, Raw]) -> Model:
    """The model that the body names, if it can be read, or else the one of `/info`. Raises
    RefusalError."""
    try:
        name = msgspec.json.decode(fields["model"], type=str)
    except (KeyError, msgspec.MsgspecError, UnicodeDecodeError):
        return described(request)
    return service_of(request).registry.named(name)
