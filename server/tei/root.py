"""`POST /`: what the daemon's model does, for clients that know nothing but an address."""

from fastapi import APIRouter, Request, Response

from server.schemas.tei import EmbedRequest
from server.service.service import service_of
from server.tei.embed import embed, embed_sparse
from server.tei.model_choice import described
from server.tei.operations import ANYTHING, tei_operation
from server.tei.predict import predict
from server.tei.rerank_texts import rerank
from server.tei.tei_errors import tei_errors

router = APIRouter()


@router.post("/", **tei_operation(ANYTHING, EmbedRequest))
@tei_errors
async def answer(request: Request) -> Response:
    """`/embed` where there is an embedder, or else `/embed_sparse`, `/predict` or, of a reranker,
    `/rerank`."""
    model = described(service_of(request))
    if model.served.engine.task == "embed":
        return await embed(request)
    if model.served.engine.task == "embed_sparse":
        return await embed_sparse(request)
    one_label = model.served.engine.model.num_labels == 1
    return await (rerank if one_label else predict)(request)
