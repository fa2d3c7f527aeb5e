"""TEI's endpoints together."""

from server.tei import embed, info, predict, rerank_texts, root

ROUTERS = tuple(part.router for part in (embed, predict, rerank_texts, info, root))
