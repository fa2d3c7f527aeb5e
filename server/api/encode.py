"""An encode job: run, counted."""

import asyncio
import re
from contextlib import nullcontext
from functools import partial
from typing import Literal

from starlette.requests import Request

from engine_core.client.pending_jobs import ONLY_VECTOR, Encoded, OfTokens
from engine_core.messages import JobOptions, Tokenization
from engine_core.refusal import RefusalError
from server.schemas.common import EncodeRequest, Usage, renamed
from server.service.distinct_items import DistinctItems, digests, plain_keys
from server.service.inputs import Items
from server.service.service import (
    Model,
    client_options,
    count_rows,
    record_of,
    service_of,
    within_limit,
)

_ROW = re.compile(r"(?:input|documents)(?:\[(?P<index>\d+)\])?")


def job_options(body: EncodeRequest, tokenization: Tokenization | None = None) -> JobOptions:
    """The options of a request's job, whose texts are tokenized so."""
    return JobOptions(
        tokenization=tokenization or Tokenization(),
        cache_salt=body.cache_salt or "",
        priority=body.priority or 0,
    )


async def encode(
    request: Request,
    model: Model,
    items: Items,
    options: JobOptions,
    *,
    query: str | list[str] | None = None,
    instruction: str | None = None,
    of_tokens: OfTokens = ONLY_VECTOR,
) -> Encoded:
    """Embed the items, score them, or return what is wanted `of_tokens`.

    An item that is there twice is computed once, and none whose vector or logits are cached.

    `query` is one for all or one for each. The ledger holds what tokens have until it is there.
    `options` get the client's key and salt. Raises RefusalError if the engine refuses the job, it
    fails, or the request's time is over.
    """
    options, count = client_options(request, options), len(items)
    run = partial(_computed, request, model, options, instruction, of_tokens)
    distinct = None
    if of_tokens is ONLY_VECTOR:
        distinct = _distinct(request, model, items, options, query, instruction)
    if distinct is None:
        encoded = await run(items, query)
    else:
        some = await run(distinct.items, distinct.query) if len(distinct.items) else None
        encoded = distinct.completed(some)
        service = service_of(request)
        if (cache := service.vectors).max_bytes:
            counts = count, distinct.num_known, cache.num_bytes
            service.metrics.cached_vectors(model.name, *counts)
    timing = encoded.timing
    cached = 0 if timing is None else timing.cached
    count_rows(request, model, count, sum(encoded.prompt_tokens), cached, timing)
    return encoded


def _distinct(
    request: Request,
    model: Model,
    items: Items,
    options: JobOptions,
    query: str | list[str] | None,
    instruction: str | None,
) -> DistinctItems | None:
    """The items to compute, if there are fewer than in the request or vectors are cached."""
    # Sparse vectors have any number of entries, which are bounded as they come.
    if model.served.execution.task == "embed_sparse":
        return None
    cache, keys = service_of(request).vectors, plain_keys(items, query)
    if not cache.max_bytes:
        unique = len(set(keys)) == len(keys)
        return None if unique else DistinctItems(items, query, keys, cache)
    keys = digests(
        model.name, options, query if isinstance(query, str) else None, instruction, keys
    )
    return DistinctItems(items, query, keys, cache)


async def _computed(
    request: Request,
    model: Model,
    options: JobOptions,
    instruction: str | None,
    of_tokens: OfTokens,
    items: Items,
    query: str | list[str] | None,
) -> Encoded:
    service, record = service_of(request), record_of(request)
    key, wanted = record.client.share.number, of_tokens is not ONLY_VECTOR
    holding = service.ledger.account(key, "numbers of tokens") if wanted else nullcontext()
    with service.in_flight, holding as account:
        encoding = model.engines.choose(options).encode(
            texts=items.texts,
            ids=items.ids,
            query=query,
            instruction=instruction,
            of_tokens=of_tokens,
            admit=account.hold if account else lambda _: None,
            options=options,
        )
        try:
            return await within_limit(service.limits, record, encoding)
        except RefusalError as error:
            raise _renamed(error, items) from None


def _renamed(error: RefusalError, items: Items) -> RefusalError:
    """`error` with the request's own field in place of the engine's."""
    row = _ROW.fullmatch(error.param or "")
    if row is None:
        return error
    return renamed(error, row[0], items.name(int(row["index"] or 0)))


async def texts_cut_to(
    model: Model,
    max_tokens: int,
    *,
    query: str | None = None,
    instruction: str | None = None,
    side: Literal["left", "right"] = "right",
) -> Tokenization:
    """The tokenization that leaves each text `max_tokens` of its own tokens, or what fits beside
    special tokens, a reranker's template and `query`. Raises RefusalError if the query leaves no
    room."""
    # In a thread: the tokenizer releases the interpreter's lock, and a query may be long.
    others = await asyncio.to_thread(_tokens_around, model, query, instruction)
    if query is not None and others >= model.max_model_len:
        raise RefusalError(
            "context_length_exceeded",
            f"query has {others} tokens, including special tokens; this model takes at most "
            f"{model.max_model_len} for a query and a text",
            "query",
        )
    return Tokenization(
        truncate_to=min(others + max_tokens, model.max_model_len),
        truncation_side=side,
    )


def _tokens_around(model: Model, query: str | None, instruction: str | None) -> int:
    """How many tokens an empty text has with `query`."""
    reranking = model.served.execution.model.reranking
    if reranking is not None and query is not None:
        pieces = reranking.known_template.filled(query, instruction)
        encodings = model.tokenizer.encodings(pieces, add_special_tokens=False)
        return sum(len(encoding.ids) for encoding in encodings)
    around = "" if query is None else (query, "")
    (encoding,) = model.tokenizer.encodings([around])
    return len(encoding.ids)


def count_usage(encoded: Encoded) -> Usage:
    """The usage of a job, as the engine counted it."""
    total = sum(encoded.prompt_tokens)
    return Usage(total, total)
