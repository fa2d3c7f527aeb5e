"""`/v2/chat`: a conversation's next message, as Cohere answers."""

from dataclasses import replace

import msgspec
from fastapi import Request, Response

from engine_core.refusal import RefusalError
from server.api.chat import CHAT_COMPLETIONS, chat_error, chat_plan
from server.cohere.chat_answer import CohereForm
from server.generation.generation import generate
from server.generation.plan import GenerationPlan
from server.generation.stream import answer
from server.http.body import Body, CancelOnDisconnect
from server.schemas.chat import ChatRequest
from server.schemas.cohere.chat_request import (
    CohereChat,
    CohereChatEvent,
    CohereChatRequest,
    CohereJson,
)
from server.schemas.response_format import JsonObject
from server.service.endpoint import Endpoint, operation
from server.service.service import record_of, service_of

CHAT = Endpoint(
    "POST",
    "/v2/chat",
    operation(CohereChat, CohereChatRequest, chunk=CohereChatEvent),
    variant_of=CHAT_COMPLETIONS,
    order=21,
)
_body = Body(CohereChatRequest)
_SCHEMA, _COHERE_SCHEMA = "response_format.schema", "response_format.json_schema"


@CHAT.answered_by
async def chat(request: Request) -> Response:
    """Answer a conversation in Cohere's shapes, in one piece or as a stream of its events."""
    service = service_of(request)
    body = await _body.read(request)
    model = service.find(record_of(request), body.model, CHAT_COMPLETIONS, body.priority or 0)
    asked = _as_chat_request(body)
    with CancelOnDisconnect(request.receive):
        try:
            plan = _lowered_to_fit(await chat_plan(asked, request, model))
            form = CohereForm(service.new_id("chat"), model, logprobs=bool(body.logprobs))
            return await answer(generate(request, model, plan), form, stream=body.stream)
        except RefusalError as error:
            raise _in_cohere_words(chat_error(error, asked)) from None


def _as_chat_request(body: CohereChatRequest) -> ChatRequest:
    """The same request of `/v1/chat/completions`."""
    form = body.response_format
    return ChatRequest(
        messages=body.messages,
        model=body.model,
        stream=body.stream,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        temperature=body.temperature,
        seed=body.seed,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        top_k=body.k,
        top_p=body.p,
        logprobs=body.logprobs,
        response_format=JsonObject(form.json_schema) if isinstance(form, CohereJson) else form,
        priority=body.priority,
    )


def _in_cohere_words(error: RefusalError) -> RefusalError:
    """`error` with the request's own name of its field."""
    if error.param != _SCHEMA:
        return error
    message = error.message.replace(_SCHEMA, _COHERE_SCHEMA, 1)
    return replace(error, message=message, param=_COHERE_SCHEMA)


def _lowered_to_fit(plan: GenerationPlan) -> GenerationPlan:
    """With as many tokens as there is room for, where the request has asked for more."""
    lowered = plan.params.max_tokens is not None
    params = msgspec.structs.replace(plan.params, lowered_to_fit=lowered)
    return msgspec.structs.replace(plan, params=params)
