"""`/v2/chat` in the terms of `/v1/chat/completions`, and its errors in Cohere's."""

from dataclasses import replace

from engine_core.refusal import RefusalError
from server.schemas.chat import ChatRequest
from server.schemas.cohere.chat_request import CohereChatRequest, CohereJson
from server.schemas.response_format import JsonObject, ResponseFormat

_SCHEMA, _COHERE_SCHEMA = "response_format.schema", "response_format.json_schema"


def as_chat_request(body: CohereChatRequest) -> ChatRequest:
    """The same request."""
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
        response_format=_format(body),
        priority=body.priority,
    )


def in_cohere_words(error: RefusalError) -> RefusalError:
    """`error` with the request's own name of its field."""
    if error.param != _SCHEMA:
        return error
    message = error.message.replace(_SCHEMA, _COHERE_SCHEMA, 1)
    return replace(error, message=message, param=_COHERE_SCHEMA)


def _format(body: CohereChatRequest) -> ResponseFormat | None:
    requested = body.response_format
    if isinstance(requested, CohereJson):
        return JsonObject(requested.json_schema)
    return requested
