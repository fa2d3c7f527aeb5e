"""`POST /`: the task of the daemon's model, for clients that know only an address."""

from typing import Any

from fastapi import Request, Response

from server.metrics.request_record import record_of
from server.schemas.tei import EmbedRequest
from server.service.endpoint import Endpoint
from server.service.service import service_of
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
    and `/predict` for any other classifier."""
    model = described(service_of(request), record_of(request))
    if model.served.execution.task == "embed":
        return await embed(request)
    if model.served.execution.task == "embed_sparse":
        return await embed_sparse(request)
    one_label = model.served.execution.model.num_labels == 1
    return await (rerank if one_label else predict)(request)
