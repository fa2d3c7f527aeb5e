"""`/tokenize`, TEI's if the body has `inputs`, and TEI's `/decode`."""

from itertools import accumulate
from typing import cast

import msgspec
from fastapi import Request, Response
from msgspec import Raw

from engine_core.tokenization.sliced_text import SlicedText
from server.api.embeddings import text_prompt
from server.api.model_endpoint import reads
from server.api.tei import protocol as tei
from server.api.tei.info import described
from server.api.tokenize import (
    ALL_TASKS,
    DETOKENIZE,
    TokenizeRequest,
    Tokens,
    all_slices,
    create_tokens,
    in_thread,
    tokenizing,
    with_special_tokens,
)
from server.schemas.common import invalid
from server.service.endpoint import Endpoint, operation
from server.service.inputs import check_count, check_ids, text_items
from server.service.service import Model, record_of, service_of

TOKENIZE = Endpoint(
    "POST",
    "/tokenize",
    tei.either_operation(
        operation(Tokens, TokenizeRequest),
        tei.operation_of(list[list[tei.SimpleToken]], body=tei.TokenizeTextsRequest),
    ),
    tasks=ALL_TASKS,
    order=200,
)
DECODE = DETOKENIZE.at("/decode", tei.operation_of(list[str], body=tei.DecodeRequest), order=125)


@TOKENIZE.answered_by
async def tokenize(request: Request) -> Response:
    """The tokens of texts, or of the prompt that a chat template makes of messages."""
    fields = await tei.fields_of(request)
    is_tei = "inputs" in fields and fields.keys().isdisjoint(("prompt", "messages"))
    return await (_tokenize_texts if is_tei else create_tokens)(request)


def _model(request: Request, name: str | None) -> Model:
    """The one of that name, or the only one, or the one of `/info`. Raises RefusalError."""
    service = service_of(request)
    if name is None and len(service.registry.models) > 1:
        return described(request)
    return service.find(record_of(request), name, DETOKENIZE)


@tei.errors
@reads(tei.TokenizeTextsRequest, _model)
async def _tokenize_texts(
    request: Request, body: tei.TokenizeTextsRequest, model: Model
) -> list[Raw]:
    items = text_items(body.inputs, "inputs")
    if not items:
        raise tei.empty_batch("inputs")
    check_count(len(items), "inputs", service_of(request).limits.max_inputs)
    model.text_bound.check_all(items.texts, items.name)
    prompt = text_prompt(model, body.prompt_name, None)
    whole = [prompt + text for text in items.texts]
    special = body.add_special_tokens is not False
    with tokenizing(request, whole):
        sliced = await all_slices(model.tokenizer, whole, offsets=True)
        return await in_thread(
            lambda: [
                _tokens_of(model, text, of_text, special=special)
                for text, of_text in zip(whole, sliced, strict=True)
            ]
        )


@DECODE.answered_by
@tei.errors
@reads(tei.DecodeRequest, _model)
async def decode(request: Request, body: tei.DecodeRequest, model: Model) -> list[str]:
    """The text of each list of token ids, without special tokens unless they are asked for."""
    service = service_of(request)
    lists = _id_lists(body.ids, model, service.limits.max_inputs)
    skips = body.skip_special_tokens is not False
    with service.in_flight:
        return await in_thread(
            lambda: [model.tokenizer.decode(ids, skip_special_tokens=skips) for ids in lists]
        )


def _id_lists(ids: list[int | list[int]], model: Model, max_items: int) -> list[list[int]]:
    """The ids of each text. Raises RefusalError for none, a mixed list, too many texts, and ids
    outside the vocabulary."""
    if not ids:
        raise tei.empty_batch("ids")
    if all(isinstance(item, int) for item in ids):
        single = cast("list[int]", ids)
        check_ids(single, "ids", model.vocab_size)
        return [single]
    if not all(isinstance(item, list) for item in ids):
        raise invalid("ids", "all token ids, or all lists of them")
    check_count(len(ids), "ids", max_items)
    lists = cast("list[list[int]]", ids)
    for index, each in enumerate(lists):
        check_ids(each, f"ids[{index}]", model.vocab_size)
    return lists


def _tokens_of(model: Model, text: str, sliced: SlicedText, *, special: bool) -> Raw:
    """The tokens of a text, as JSON: as objects those of a long text would be large."""
    # From characters, in which the tokenizer counts, to bytes, in which TEI does.
    bytes_before = list(accumulate((len(char.encode()) for char in text), initial=0))
    encoding = with_special_tokens(model.tokenizer, sliced, special=special)
    own = sliced.offsets()
    tokens: list[tei.SimpleToken] = []
    for id_, token, added in zip(
        encoding.ids, encoding.tokens, encoding.special_tokens_mask, strict=True
    ):
        start, stop = (None, None) if added else next(own)
        tokens.append(
            tei.SimpleToken(
                id=id_,
                text=token if start is None else text[start:stop],
                special=start is None,
                start=None if start is None else bytes_before[start],
                stop=None if stop is None else bytes_before[stop],
            )
        )
    return Raw(msgspec.json.encode(tokens))
