"""TEI's endpoints together."""

from server.tei import embed, info, predict, rerank, root

ROUTERS = tuple(part.router for part in (embed, predict, rerank, info, root))
