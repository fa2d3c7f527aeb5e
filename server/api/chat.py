"""`/v1/chat/completions`: a conversation's next message."""

import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial

import msgspec
from fastapi import Request, Response
from msgspec import UNSET, UnsetType

from engine_core.refusal import RefusalError
from server.generation.chat.chat_choices import ChatFormat
from server.generation.chat.chat_prompt import chat_prompt
from server.generation.chat.conversation import ChatOptions
from server.generation.generation import Generation, generate
from server.generation.plan import GenerationPlan, generation_plan
from server.generation.requested_sampling import sampling_params
from server.generation.stream import (
    StreamedUsage,
    encoded_choices,
    stream_events,
    streamed_usage,
)
from server.generation.text_piece import TextPiece
from server.http.body import Body
from server.http.disconnect import CancelOnDisconnect
from server.http.openapi import operation
from server.http.sse import EventStream
from server.metrics.request_record import record_of
from server.schemas.chat import ChatChunk, ChatCompletion, ChatRequest, ChunkChoice
from server.schemas.common import CompletionUsage
from server.schemas.field_names import value_under_any_name
from server.service.endpoint import Endpoint
from server.service.inputs import text_items
from server.service.registry import Model
from server.service.service import Service, json_answer, service_of

CHAT_COMPLETIONS = Endpoint(
    "POST",
    "/v1/chat/completions",
    operation(ChatCompletion, ChatRequest, chunk=ChatChunk),
    tasks=("generate",),
    order=20,
)
_body = Body(ChatRequest)


@CHAT_COMPLETIONS.answered_by
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, in one piece or as a stream of server-sent events."""
    service = service_of(request)
    body = await _body.read(request, service.limits.max_body_bytes)
    model = service.find(record_of(request), body.model, CHAT_COMPLETIONS, body.priority or 0)
    usage = streamed_usage(body)
    with CancelOnDisconnect(request.receive):
        plan = await chat_plan(body, request, model)
        generating = generate(request, model, plan)
        answer = _Answer(service, model, ChatFormat(body, model, plan.logprobs))
        try:
            if body.stream:
                return await EventStream.begin(answer.events(generating, usage))
            return await answer.whole(generating)
        except RefusalError as error:
            raise chat_error(error, body) from None


class _Answer:
    """One answer, whole or as a stream."""

    def __init__(self, service: Service, model: Model, form: ChatFormat) -> None:
        self._id = service.new_id("chatcmpl")
        self._created = int(time.time())
        self._model = model.name
        self._fingerprint = model.fingerprint
        self._form = form

    async def whole(self, generating: AbstractAsyncContextManager[Generation]) -> Response:
        """The answer once it has ended."""
        async with generating as generation:
            pieces = await generation.final_pieces()
            first, form = pieces[0], self._form
            async with generation.encoding():
                answer = ChatCompletion(
                    id=self._id,
                    created=self._created,
                    model=self._model,
                    system_fingerprint=self._fingerprint,
                    choices=await encoded_choices(pieces, form.choice),
                    usage=generation.usage(),
                    prompt_token_ids=UNSET if first.prompt_ids is None else first.prompt_ids,
                    prompt_logprobs=await form.prompt_logprobs(first),
                )
                return json_answer(answer)

    def events(
        self, generating: AbstractAsyncContextManager[Generation], usage: StreamedUsage
    ) -> AsyncGenerator[bytes]:
        """The answer as a stream."""
        return stream_events(
            generating,
            usage,
            self._chunks,
            partial(self._chunk, []),
        )

    async def _chunks(
        self, piece: TextPiece, usage: CompletionUsage | UnsetType | None
    ) -> list[ChatChunk]:
        chunks = [self._chunk([choice], usage) for choice in await self._form.deltas(piece)]
        if piece.prompt_ids is not None:
            chunks[0] = msgspec.structs.replace(chunks[0], prompt_token_ids=piece.prompt_ids)
        return chunks

    def _chunk(
        self, choices: list[ChunkChoice], usage: CompletionUsage | UnsetType | None
    ) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=choices,
            usage=usage,
        )


async def chat_plan(body: ChatRequest, request: Request, model: Model) -> GenerationPlan:
    """The request, checked, its prompt rendered. Raises RefusalError."""
    max_tokens = _max_tokens(body)
    logprobs = _top_logprobs(body)
    if body.stream and body.prompt_logprobs is not None:
        raise RefusalError(
            "invalid_request", "prompt_logprobs: not with `stream`", "prompt_logprobs"
        )
    params = sampling_params(
        body,
        model,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
    )
    text = await chat_prompt(request, model, body.messages, _options(body))
    plan = generation_plan(
        body,
        model,
        service_of(request).limits,
        prompts=text_items(text, "messages"),
        params=params,
        logprobs=logprobs,
        # Templates write the special tokens themselves.
        add_special_tokens=bool(body.add_special_tokens),
    )
    return msgspec.structs.replace(plan, return_token_ids=bool(body.return_token_ids))


def _options(body: ChatRequest) -> ChatOptions:
    effort = {} if body.reasoning_effort is None else {"reasoning_effort": body.reasoning_effort}
    return ChatOptions(
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables={**(body.chat_template_kwargs or {}), **effort},
    )


def _max_tokens(body: ChatRequest) -> int | None:
    """None for as many as the context has room for. Raises RefusalError for two numbers."""
    newer, older = body.max_completion_tokens, body.max_tokens
    return value_under_any_name(("max_completion_tokens", newer), ("max_tokens", older))


def _top_logprobs(body: ChatRequest) -> int | None:
    """The alternatives beside each token; None for no log-probabilities at all. Raises RefusalError
    for alternatives without log-probabilities."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise RefusalError("invalid_request", "top_logprobs: only with `logprobs`", "top_logprobs")
    return None


def chat_error(error: RefusalError, body: ChatRequest) -> RefusalError:
    """The engine's refusal with this endpoint's field for `prompt` or `max_tokens`."""
    param = error.param
    if param is not None and param.startswith("prompt"):
        param = "messages"
    elif param == "max_tokens" and body.max_tokens is None:
        param = "max_completion_tokens"
    return replace(error, param=param)
