"""`/detokenize`, and our own form of `/tokenize`: a model's tokenizer, without its engine."""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TypeVar, get_args

import msgspec
from fastapi import Request
from tokenizers import Encoding

from engine_core.tokenization.sliced_text import SLICE_CHARACTERS, SlicedText
from engine_core.tokenization.tokenizer import Tokenizer
from server.api.declaration import answers, reads
from server.generation.conversation import ChatOptions, chat_prompt
from server.generation.requested_tools import tools_of
from server.schemas.chat import Messages, TemplateVariables, Tool
from server.schemas.common import invalid
from server.service.endpoint import Endpoint
from server.service.inputs import check_ids
from server.service.service import Model, record_of, service_of
from workers.contract.config import Task

ResultT = TypeVar("ResultT")


class TokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A text to tokenize, or a chat's messages."""

    """Example: {"model": "penstock-demo", "prompt": "The function returns"}"""
    """Example: {"messages": [{"content": "What does it return?", "role": "user"}], "model":
    "penstock-demo"}"""

    prompt: str | None = None
    """A text, which may be empty; either `prompt` or `messages` is required."""
    messages: Messages | None = None
    """A [chat](#messages-chatmessage): its prompt, by the [template](#chat-templates), is
    tokenized."""
    model: str | None = None
    """A name of the model. Default: [the only one that fits](#rules-for-every-request)."""
    add_special_tokens: bool | None = None
    """Default: true for a text, false for a chat."""
    tools: list[Tool] | None = None
    """[Tools](#tools) that the prompt describes; only with `messages`, like the next three.
    Default: `[]`."""
    add_generation_prompt: bool | None = None
    """End the prompt with an answer's beginning. Default: as in [chat](#post-v1chatcompletions)."""
    continue_final_message: bool | None = None
    """Default: false."""
    chat_template_kwargs: TemplateVariables | None = None
    """Default: `{}`."""
    return_token_strs: bool | None = None
    """Also return `token_strs`: each token as written in the vocabulary. Default: false."""


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/tokenize`."""

    count: int
    """How many tokens there are."""
    max_model_len: int
    """Tokens that the model takes at most."""
    tokens: list[int]
    """The ids."""
    token_strs: list[str] | None = None
    """The tokens as the vocabulary writes them, if `return_token_strs` asks for them; else null."""


class DetokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """Token ids of `model` to turn into text, special tokens included."""

    """Example: {"model": "penstock-demo", "tokens": [0, 394, 424, 1141]}"""

    tokens: list[int]
    """Each within the vocabulary; may be empty."""
    model: str | None = None
    """A name of the model. Default: [the only one that fits](#rules-for-every-request)."""


class DetokenizedText(msgspec.Struct, frozen=True):
    """The answer of `/detokenize`."""

    prompt: str
    """The text, special tokens included."""


ALL_TASKS = get_args(Task)


@answers(Endpoint("POST", "/detokenize", "Jina, vLLM", tasks=ALL_TASKS, order=210))
async def detokenize(request: Request, body: DetokenizeRequest, model: Model) -> DetokenizedText:
    """The text of token ids."""
    check_ids(body.tokens, "tokens", model.vocab_size)
    with service_of(request).in_flight:
        text = await in_thread(
            lambda: model.tokenizer.decode(body.tokens, skip_special_tokens=False)
        )
    return DetokenizedText(text)


@reads(detokenize)
async def create_tokens(request: Request, body: TokenizeRequest, model: Model) -> Tokens:
    """The token ids of a text, or of the prompt that a chat template makes of messages."""
    text, special = await _text(request, model, body)
    tokens = await tokens_of(request, model, text, special=special)
    strings: list[str] | None = None
    if body.return_token_strs:
        entry = model.tokenizer.token_bytes.entry
        strings = await in_thread(lambda: [*map(entry, tokens)])
    return Tokens(
        count=len(tokens),
        max_model_len=model.max_model_len,
        tokens=tokens,
        token_strs=strings,
    )


async def tokens_of(request: Request, model: Model, text: str, *, special: bool) -> list[int]:
    """The ids of a text. Raises RefusalError `overloaded`."""
    with tokenizing(request, [text]):
        (sliced,) = await all_slices(model.tokenizer, [text])
        return await in_thread(
            lambda: with_special_tokens(model.tokenizer, sliced, special=special).ids
        )


@contextmanager
def tokenizing(request: Request, texts: list[str]) -> Generator[None]:
    """Hold texts that are tokenized within the block. Raises RefusalError `overloaded`."""
    service, key = service_of(request), record_of(request).client.share.number
    with service.in_flight, service.ledger.account(key, "texts to tokenize") as account:
        account.hold(sum(len(text.encode()) for text in texts))
        yield


async def _text(request: Request, model: Model, body: TokenizeRequest) -> tuple[str, bool]:
    """The text, and whether it gets special tokens. Raises RefusalError."""
    if body.messages is None:
        if body.prompt is None:
            raise invalid("prompt", "is required without messages")
        _refuse_chat_options(body)
        model.text_bound.check_length(len(body.prompt), "prompt")
        return body.prompt, body.add_special_tokens is not False
    if body.prompt is not None:
        raise invalid("messages", "not together with prompt")
    tools = tools_of(body.tools)
    options = ChatOptions(
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=body.chat_template_kwargs or {},
        tools=tools and tools.described,
    )
    text = await chat_prompt(request, model, body.messages, options)
    return text, bool(body.add_special_tokens)


def _refuse_chat_options(body: TokenizeRequest) -> None:
    for field in (
        "tools",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
    ):
        if getattr(body, field):
            raise invalid(field, "only with messages")


async def all_slices(
    tokenizer: Tokenizer, texts: Sequence[str], *, offsets: bool = False
) -> list[SlicedText]:
    """The tokens of each text, and with `offsets` where they are in it."""
    sliced = [SlicedText(tokenizer, text, offsets=offsets) for text in texts]
    incomplete = deque(sliced)

    def take_some() -> None:
        size = 0
        while incomplete and size < SLICE_CHARACTERS:
            size += incomplete[0].take()
            if incomplete[0].is_complete:
                incomplete.popleft()

    while incomplete:
        await in_thread(take_some)
    return sliced


def with_special_tokens(tokenizer: Tokenizer, sliced: SlicedText, *, special: bool) -> Encoding:
    """The text's encoding, but for its offsets."""
    return tokenizer.raw.post_process(sliced.merged(), None, special)


async def in_thread(work: Callable[[], ResultT]) -> ResultT:
    """Do `work` in a thread: the tokenizer releases the interpreter's lock. No thread can be
    stopped: who is cancelled waits for it, and counts as in flight."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()  # nobody asks for it any more
        raise
