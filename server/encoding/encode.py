"""An encode job: run, counted."""

import asyncio
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from engine_core.client.encode_calls import Encoded
from engine_core.messages import JobOptions, Tokenization
from engine_core.refusal import RefusalError
from server.encoding.row_names import renamed
from server.metrics.request_record import RequestRecord
from server.schemas.common import Usage
from server.service.inputs import Items
from server.service.registry import Model
from server.service.service import Service
from server.service.time_limit import within_limit


class Query(msgspec.Struct, frozen=True):
    """What texts are scored against: one `text`, or one for each of them; and what a reranker is
    asked to find, if not the usual."""

    text: str | list[str]
    instruction: str | None = None


async def encode(
    service: Service,
    record: RequestRecord,
    model: Model,
    items: Items,
    *,
    query: Query | None = None,
    token_states: bool = False,
    options: JobOptions,
    name: Callable[[int], str] | None = None,
) -> Encoded:
    """Embed the items, or score each text, alone, against `query` or against one of its own.
    `record` is that of the request, whose client's key and salt are added to the `options`.

    Raises RefusalError if the engine refuses the job, it fails, or the request's time is over.
    `name` returns the request's field of an item, where that is not the engine's.
    """
    client = record.client
    with service.in_flight:
        encoding = model.client.encode(
            texts=items.texts,
            ids=items.ids,
            query=query and query.text,
            instruction=query and query.instruction,
            token_states=token_states,
            options=msgspec.structs.replace(
                options, cache_salt=client.salted(options.cache_salt), key=client.share
            ),
        )
        try:
            encoded = await within_limit(service.limits, record, encoding)
        except RefusalError as error:
            raise error if name is None else renamed(error, name) from None
    _count(service, record, model, encoded)
    return encoded


def _count(service: Service, record: RequestRecord, model: Model, encoded: Encoded) -> None:
    tokens, rows = sum(encoded.prompt_tokens), len(encoded.prompt_tokens)
    service.metrics.of_model(model.name).prompt_tokens.add(tokens)
    record.prompt_tokens += tokens
    record.rows += rows
    record.end_rows("stop", rows)
    if encoded.timing is not None:
        record.cached_tokens += encoded.timing.cached
        record.add_timing(encoded.timing)
        record.encoded_s = time.perf_counter() - record.started


async def texts_cut_to(
    model: Model,
    max_tokens: int,
    *,
    query: str | None = None,
    instruction: str | None = None,
    side: Literal["left", "right"] = "right",
) -> Tokenization:
    """The tokenization that cuts each text to `max_tokens` tokens of its own, or to the model's
    limit less special tokens, a reranker's template, and `query`, which stay whole.

    Raises RefusalError `context_length_exceeded` where the query leaves no room for a text.
    """
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
