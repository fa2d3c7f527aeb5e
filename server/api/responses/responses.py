"""`/v1/responses`: the next items of a conversation."""

from typing import NamedTuple

from fastapi import Request, Response
from msgspec.structs import replace

from server.api.chat import chat_plan
from server.api.declaration import answers
from server.api.own_fields import OwnFields
from server.api.responses.answer import ResponseForm
from server.api.responses.conversation import ItemMessages
from server.api.responses.objects import InputTokenCount, ResponseEvent, ResponseObject
from server.api.responses.requests import (
    InputTokensRequest,
    ResponsePrompt,
    ResponsesRequest,
    TextObject,
    TextOptions,
    TextSchema,
)
from server.api.responses.stored import items_before, keeper
from server.api.responses.tools import OfferedTools
from server.api.tokenize import tokens_of
from server.generation.generation import answer
from server.generation.signed_reasoning import SignedReasoning
from server.schemas.chat import ChatRequest
from server.schemas.common import invalid
from server.schemas.sampling import JsonObject, JsonSchema, NamedSchema, PlainText, ResponseFormat
from server.service.endpoint import Endpoint, operation
from server.service.service import Model, record_of, service_of

_PATHS = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
}
_ENCRYPTED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"


@answers(
    Endpoint("POST", "/v1/responses", "OpenAI", tasks=("generate",), order=22),
    operation(ResponseObject, ResponsesRequest, chunk=ResponseEvent),
)
async def create_response(request: Request, body: ResponsesRequest, model: Model) -> Response:
    """Answer a conversation of items, in one piece or as a stream of server-sent events."""
    service, record = service_of(request), record_of(request)
    keep = await keeper(request, body)
    asked = await asked_of_chat(request, body)
    sign = SignedReasoning.of(request).seal if _ENCRYPTED in (body.include or ()) else None
    with asked.fields.named(record):
        plan = await chat_plan(
            asked.request,
            request,
            model,
            most_tokens=body.max_output_tokens,
            may_lose_reasoning=True,
        )
        answer_id = service.new_id("resp").replace("-", "_")
        form = ResponseForm(body, model, answer_id, plan, asked.tools, sign=sign, keep=keep)
        return await answer(request, model, plan, form, stream=body.stream)


@answers(
    Endpoint("POST", "/v1/responses/input_tokens", "OpenAI", variant_of=create_response, order=23)
)
async def count_input_tokens(
    request: Request, body: InputTokensRequest, model: Model
) -> InputTokenCount:
    """The number of tokens of the prompt that a request of `/v1/responses` makes."""
    asked = await asked_of_chat(request, body)
    with asked.fields.named(record_of(request)):
        plan = await chat_plan(asked.request, request, model, may_lose_reasoning=True)
    (text,) = plan.prompts.texts
    return InputTokenCount(input_tokens=len(await tokens_of(request, model, text, special=False)))


class AskedOfChat(NamedTuple):
    """A request as one of `/v1/chat/completions`, its tools, and its own names of fields."""

    request: ChatRequest
    tools: OfferedTools
    fields: OwnFields


async def asked_of_chat(
    request: Request, body: ResponsePrompt, *, summarize: bool = False
) -> AskedOfChat:
    """The request as one of chat, or for a summary of it. Raises RefusalError, naming the field."""
    tools = OfferedTools(body)
    items = ItemMessages(body.instructions, SignedReasoning.of(request))
    if body.previous_response_id is not None:
        before = await items_before(request, body.previous_response_id)
        await items.add(before, "previous_response_id")
    await items.add(body.input, "input")
    if summarize:
        items.ask_for_summary()
    asked = ChatRequest(
        messages=await items.messages(),
        response_format=_format(body.text or TextOptions()),
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        tools=tools.functions or None,
        tool_choice=tools.choice,
        parallel_tool_calls=body.parallel_tool_calls,
        truncate_prompt_tokens=-1 if body.truncation == "auto" else None,
    )
    if isinstance(body, ResponsesRequest):
        asked = _sampled(asked, body)
    paths = _PATHS | items.paths | tools.paths
    left_out = [*tools.left_out, *items.left_out]
    return AskedOfChat(asked, tools, OwnFields("input", paths, left_out))


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
