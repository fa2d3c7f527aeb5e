"""TEI's endpoints together."""

from fastapi import APIRouter

from server.tei import embed, info, predict, rerank, root

router = APIRouter()
for _part in (embed, predict, rerank, info, root):
    router.include_router(_part.router)
