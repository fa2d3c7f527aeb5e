"""An encode job: admitted, run, counted."""

import asyncio
from typing import Literal

from engine_core.client.encode_calls import AnswerT, CallKind, Encoded
from engine_core.messages import Tokenization
from server.errors import APIError
from server.schemas.common import Usage
from server.service.inputs import Items
from server.service.registry import Model
from server.service.service import Service


async def encode(
    service: Service,
    model: Model,
    kind: CallKind[AnswerT],
    items: Items,
    *,
    query: str | list[str] | None = None,
    cache_salt: str | None = None,
    tokenization: Tokenization | None = None,
    priority: int = 0,
) -> AnswerT:
    """Embed the items, or score each text, alone, against `query` or against one of its own. `kind`
    is the kind of answer that the model gives.

    Raises APIError or EngineError if admission or the engine refuses the job, or it fails.
    """
    tokens = items.size + _query_size(query, len(items))
    with service.admission.admit(rows=len(items), tokens=tokens):
        encoded = await model.client.encode(
            kind,
            texts=items.texts,
            ids=items.ids,
            query=query,
            cache_salt=cache_salt or "",
            tokenization=tokenization,
            priority=priority,
        )
    service.metrics.prompt_tokens.labels(model.name).inc(sum(encoded.prompt_tokens))
    return encoded


async def texts_cut_to(
    model: Model,
    max_tokens: int,
    *,
    query: str | None = None,
    side: Literal["left", "right"] = "right",
) -> Tokenization:
    """The tokenization that cuts each text to `max_tokens` tokens of its own, or to the model's
    limit less special tokens and `query`, which stays whole.

    Raises APIError `context_length_exceeded` where the query leaves no room for a text.
    """
    around = "" if query is None else (query, "")
    # In a thread: the tokenizer releases the interpreter's lock, and a query may be long.
    (encoding,) = await asyncio.to_thread(model.tokenizer.raw.encode_batch_fast, [around])
    others = len(encoding.ids)
    if query is not None and others >= model.max_model_len:
        raise APIError(
            "context_length_exceeded",
            f"query has {others} tokens, including special tokens; this model takes at most "
            f"{model.max_model_len} for a query and a text",
            "query",
        )
    return Tokenization(
        truncate_to=min(others + max_tokens, model.max_model_len),
        truncation_side=side,
    )


def count_usage(encoded: Encoded) -> Usage:
    """The usage of a job, as the engine counted it."""
    total = sum(encoded.prompt_tokens)
    return Usage(total, total)


def _query_size(query: str | list[str] | None, items: int) -> int:
    """In bytes: one query is part of every pair."""
    if query is None:
        return 0
    if isinstance(query, str):
        return items * len(query.encode())
    return sum(len(text.encode()) for text in query)
