"""`/detokenize`, and our own form of `/tokenize`: a model's tokenizer, without its engine."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import get_args

from fastapi import Request, Response
from msgspec import UNSET

from engine_core.refusal import RefusalError
from engine_core.tokenization.sliced_text import SlicedText
from server.encoding.whole_texts import all_slices, in_thread, with_special_tokens
from server.generation.chat.conversation import ChatOptions, chat_prompt
from server.http.body import Body, CancelOnDisconnect
from server.schemas.tokenize import (
    DetokenizedText,
    DetokenizeRequest,
    TokenizeRequest,
    Tokens,
)
from server.service.endpoint import Endpoint, operation
from server.service.inputs import check_ids
from server.service.service import Model, json_answer, record_of, service_of
from workers.contract.config import Task

ALL_TASKS = get_args(Task)
DETOKENIZE = Endpoint(
    "POST",
    "/detokenize",
    operation(DetokenizedText, DetokenizeRequest),
    tasks=ALL_TASKS,
    order=210,
)
_detokenize_body = Body(DetokenizeRequest)


async def answer_tokenization(request: Request, model: Model, body: TokenizeRequest) -> Response:
    """The token ids of a text, or of the prompt that a chat template makes of messages. Raises
    RefusalError."""
    with CancelOnDisconnect(request.receive):
        text, special = await _text(request, model, body)
        with tokenizing(request, [text]):
            (sliced,) = await all_slices(model.tokenizer, [text])
            with_texts = bool(body.return_token_strs)
            tokens = await in_thread(
                lambda: _tokens(model, sliced, special=special, with_texts=with_texts)
            )
    return json_answer(tokens)


@contextmanager
def tokenizing(request: Request, texts: list[str]) -> Generator[None]:
    """These texts are tokenized within the block. Raises RefusalError `overloaded`."""
    service, key = service_of(request), record_of(request).client.share.number
    with service.in_flight, service.ledger.account(key, "texts to tokenize") as account:
        account.hold(sum(len(text.encode()) for text in texts))
        yield


def _tokens(model: Model, sliced: SlicedText, *, special: bool, with_texts: bool) -> Tokens:
    tokens = with_special_tokens(model.tokenizer, sliced, special=special).ids
    return Tokens(
        count=len(tokens),
        max_model_len=model.max_model_len,
        tokens=tokens,
        token_strs=[*map(model.tokenizer.id_to_token, tokens)] if with_texts else UNSET,
    )


async def _text(request: Request, model: Model, body: TokenizeRequest) -> tuple[str, bool]:
    """The text, and whether it gets special tokens. Raises RefusalError."""
    if body.messages is None:
        if body.prompt is None:
            raise RefusalError("invalid_request", "prompt: is required without messages", "prompt")
        _refuse_chat_options(body)
        model.text_bound.check(body.prompt, "prompt")
        return body.prompt, body.add_special_tokens is not False
    if body.prompt is not None:
        raise RefusalError("invalid_request", "messages: not together with prompt", "messages")
    options = ChatOptions(
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs or {},
    )
    text = await chat_prompt(request, model, body.messages, options)
    return text, bool(body.add_special_tokens)


def _refuse_chat_options(body: TokenizeRequest) -> None:
    for field in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
        if getattr(body, field):
            raise RefusalError("invalid_request", f"{field}: only with messages", field)


@DETOKENIZE.answered_by
async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    service, record = service_of(request), record_of(request)
    body = await _detokenize_body.read(request)
    model = service.find(record, body.model, DETOKENIZE)
    check_ids(body.tokens, "tokens", model.vocab_size)
    with service.in_flight:
        text = await in_thread(
            lambda: model.tokenizer.decode(body.tokens, skip_special_tokens=False)
        )
    return json_answer(DetokenizedText(text))
