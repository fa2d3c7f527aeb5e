"""`POST /`: the task of the daemon's model, for clients that know only an address."""

from typing import Any

import msgspec
from fastapi import Request, Response

from server.api.rerank import RERANK
from server.http.body import whole_body
from server.schemas.tei import EmbedRequest
from server.service.endpoint import Endpoint
from server.service.registry import Model
from server.service.service import record_of, service_of
from server.tei.embed import answer_embed, answer_embed_sparse
from server.tei.info import described
from server.tei.operations import tei_operation
from server.tei.predict import answer_predict
from server.tei.rerank_texts import answer_rerank
from server.tei.tei_errors import tei_errors

ROOT = Endpoint("POST", "/", tei_operation(Any, body=EmbedRequest), order=140)


class _Named(msgspec.Struct):
    model: str | None = None


_named = msgspec.json.Decoder(_Named)


@ROOT.answered_by
@tei_errors
async def answer(request: Request) -> Response:
    """`/embed` if there is an embedder, or else `/embed_sparse`, or else `/rerank` for a reranker
    and `/predict` for any other classifier. With `model` that of the task of the named one."""
    raw = await whole_body(request)
    execution = _model(request, raw).served.execution
    if execution.task == "embed":
        return await answer_embed(request, raw)
    if execution.task == "embed_sparse":
        return await answer_embed_sparse(request, raw)
    reranks = RERANK.is_served_by(execution)
    return await (answer_rerank if reranks else answer_predict)(request, raw)


def _model(request: Request, raw: bytes) -> Model:
    """The model that the body names, if it can be read, or else the one of `/info`. Raises
    RefusalError."""
    service = service_of(request)
    try:
        name = _named.decode(raw).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        name = None
    if name is None:
        return described(service, record_of(request))
    return service.registry.named(name)
