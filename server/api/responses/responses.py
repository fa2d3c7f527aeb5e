"""`/v1/responses`: the next items of a conversation."""

from typing import NamedTuple

from fastapi import Request, Response
from msgspec.structs import replace

from engine_core.refusal import RefusalError
from server.api.chat import chat_error, chat_plan
from server.api.declaration import answers
from server.api.responses.answer import ResponseForm
from server.api.responses.conversation import ItemMessages
from server.api.responses.objects import ResponseEvent, ResponseObject
from server.api.responses.requests import (
    ResponsePrompt,
    ResponsesRequest,
    TextObject,
    TextOptions,
    TextSchema,
)
from server.api.responses.tools import OfferedTools
from server.generation.generation import answer
from server.schemas.chat import ChatRequest
from server.schemas.common import in_own_words, invalid, own_path
from server.schemas.sampling import JsonObject, JsonSchema, NamedSchema, PlainText, ResponseFormat
from server.service.endpoint import Endpoint, operation
from server.service.service import Model, record_of, service_of

_PATHS = {
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
}
_LOGPROBS = "message.output_text.logprobs"


@answers(
    Endpoint("POST", "/v1/responses", "OpenAI", tasks=("generate",), order=22),
    operation(ResponseObject, ResponsesRequest, chunk=ResponseEvent),
)
async def create_response(request: Request, body: ResponsesRequest, model: Model) -> Response:
    """Answer a conversation of items, in one piece or as a stream of server-sent events."""
    if body.store:
        raise invalid("store", "nothing is stored here")
    asked = await asked_of_chat(body)
    try:
        plan = await chat_plan(asked.request, request, model, most_tokens=body.max_output_tokens)
        answer_id = service_of(request).new_id("resp").replace("-", "_")
        form = ResponseForm(body, model, answer_id, plan, asked.tools)
        response = await answer(request, model, plan, form, stream=body.stream)
    except RefusalError as error:
        raise in_own_words(chat_error(error, asked.request), asked.paths) from None
    record = record_of(request)
    ignored = (own_path(path, asked.paths) for path in record.ignored)
    record.ignored = (*asked.tools.left_out, *ignored)
    return response


class AskedOfChat(NamedTuple):
    """A request as one of `/v1/chat/completions`, its tools, and the fields that it has for those
    of that one."""

    request: ChatRequest
    tools: OfferedTools
    paths: dict[str, str]


async def asked_of_chat(body: ResponsePrompt) -> AskedOfChat:
    """What a request asks of a chat. Raises RefusalError, naming the field."""
    tools, items = OfferedTools(body), ItemMessages(body.instructions)
    await items.add(body.input, "input")
    request = ChatRequest(
        messages=await items.messages(),
        response_format=_format(body.text or TextOptions()),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        tools=tools.functions or None,
        tool_choice=tools.choice,
        parallel_tool_calls=body.parallel_tool_calls,
        truncate_prompt_tokens=-1 if body.truncation == "auto" else None,
    )
    if isinstance(body, ResponsesRequest):
        request = _sampled(request, body)
    return AskedOfChat(request, tools, _PATHS | items.paths | tools.paths)


def _sampled(request: ChatRequest, body: ResponsesRequest) -> ChatRequest:
    """The request with the options of an answer. Raises RefusalError."""
    logprobs = _LOGPROBS in (body.include or ())
    if body.top_logprobs and not logprobs:
        raise invalid("top_logprobs", f"only with {_LOGPROBS!r} in `include`")
    return replace(
        request,
        stream=body.stream,
        temperature=body.temperature,
        top_p=body.top_p,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        logprobs=logprobs,
        top_logprobs=body.top_logprobs,
        priority=body.priority,
    )


def _format(text: TextOptions) -> ResponseFormat | None:
    match text.format:
        case TextObject():
            return JsonObject()
        case TextSchema(schema=schema, strict=strict):
            return JsonSchema(NamedSchema(schema=schema, strict=strict))
        case PlainText() | None:
            return None
