"""`POST /`: what the daemon's model does, for clients that know nothing but an address."""

from typing import Any

from fastapi import Request, Response

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
    """`/embed` where there is an embedder, or else `/embed_sparse`, `/predict` or, of a reranker,
    `/rerank`."""
    model = described(service_of(request))
    if model.served.execution.task == "embed":
        return await embed(request)
    if model.served.execution.task == "embed_sparse":
        return await embed_sparse(request)
    one_label = model.served.execution.model.num_labels == 1
    return await (rerank if one_label else predict)(request)
