"""`POST /`: the task of the daemon's model, for clients that know only an address."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Request, Response
from msgspec import Raw

from server.api.rerank import RERANK
from server.schemas.tei import EmbedRequest
from server.service.endpoint import Endpoint
from server.service.service import Model, service_of
from server.tei.dialects import fields_of
from server.tei.embed import embed, embed_sparse
from server.tei.info import described
from server.tei.operations import tei_operation
from server.tei.predict import predict
from server.tei.rerank_texts import rerank
from server.tei.tei_errors import tei_errors

ROOT = Endpoint("POST", "/", tei_operation(Any, body=EmbedRequest), order=140)


@ROOT.answered_by
@tei_errors
async def answer(request: Request) -> Response:
    """`/embed` if there is an embedder, or else `/embed_sparse`, or else `/rerank` for a reranker
    and `/predict` for any other classifier. With `model` that of the task of the named one."""
    fields = await fields_of(request)
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
