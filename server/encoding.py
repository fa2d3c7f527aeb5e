"""An encode job in the house: admitted, run, counted."""

from engine_core.client_jobs import Encoded
from server.prompts import Items
from server.registry import Model
from server.schemas.common import Usage
from server.service import Service


async def encode(
    service: Service, model: Model, items: Items, *, query: str | None = None
) -> Encoded:
    """Embed the items, or score each text against `query`.

    Raises APIError or EngineError where the house or the engine refuses or fails the job.
    """
    # Every pair holds the query once.
    tokens = items.size + len(items) * len((query or "").encode())
    with service.admission.admit(rows=len(items), tokens=tokens):
        encoded = await model.client.encode(texts=items.texts, ids=items.ids, query=query)
    service.metrics.prompt_tokens.labels(model.name).inc(sum(encoded.prompt_tokens))
    return encoded


def count_usage(encoded: Encoded) -> Usage:
    """What the job cost, as the engine counted it."""
    total = sum(encoded.prompt_tokens)
    return Usage(total, total)
