"""`/v2/chat`: a conversation's next message, as Cohere answers."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from fastapi import Request, Response
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from engine_core.refusal import RefusalError
from server.api.chat import chat_error, chat_plan, create_chat_completion
from server.api.cohere.chat_answer import CohereChat, CohereChatEvent, CohereForm
from server.api.declaration import answers
from server.generation.generation import answer
from server.schemas.chat import ChatRequest, Messages, Tool
from server.schemas.common import Count, Int64, renamed
from server.schemas.sampling import JsonObject, Penalty, PlainText, SchemaText, StopString
from server.service.endpoint import operation
from server.service.service import Model, service_of


class CohereJson(msgspec.Struct, frozen=True, tag="json_object"):
    json_schema: SchemaText | UnsetType = UNSET
    """The JSON schema that the text is valid by."""


class CitationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How documents are cited, which has no effect: there are none."""

    mode: Literal["ENABLED", "DISABLED", "FAST", "ACCURATE", "OFF"] | None = None
    """Without effect."""


class CohereChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of `/v2/chat`, without documents. `p`, `k` and `stop_sequences` are `top_p`,
    `top_k` and `stop` of `/v1/chat/completions`."""

    """Example: {"max_tokens": 12, "messages": [{"content": "What does it return?", "role":
    "user"}], "model": "penstock-demo", "temperature": 0}"""
    """Example: {"max_tokens": 2, "messages": [{"content": "What does it return?", "role": "user"}],
    "model": "penstock-demo", "stream": true, "temperature": 0}"""

    messages: Messages
    """As in [chat](#messages-chatmessage)."""
    model: str | None = None
    """A model with a [chat template](#chat-templates). Default: [the only one that
    fits](#rules-for-every-request)."""
    stream: bool | None = None
    """The answer as Cohere's events, see below. Default: false."""
    max_tokens: Count | None = None
    """1 to 2³¹ − 1; more than the context has left is the rest. Default: the rest."""
    stop_sequences: Annotated[list[StopString], Meta(max_length=16)] | None = None
    """As `stop` of [completions](#post-v1completions): at most 16, each of 1 to 1024 characters."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """0 to 2; 0 takes the likeliest token. Default: the model's."""
    seed: Int64 | None = None
    """As in [completions](#seeds)."""
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    """−2 to 2, as in [completions](#biases-and-penalties). Default: the model's."""
    k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """`top_k` of [completions](#post-v1completions), 0 to 2³¹ − 1. Default: the model's."""
    p: Annotated[float, Meta(ge=0, le=1)] | None = None
    """`top_p` of [completions](#post-v1completions), 0 to 1. Default: the model's."""
    logprobs: bool | None = None
    """Return each token's id and log-probability. Default: false."""
    response_format: PlainText | CohereJson | None = None
    """Also `{"type": "json_object"}`, optionally with a `json_schema`: see [structured
    output](#structured-output). Default: `{"type": "text"}`."""
    tools: list[Tool] | None = None
    """As in [chat](#tools). Default: `[]`."""
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    """Whether the model must call a tool, or calls none; only with `tools`. Default: it may."""
    strict_tools: bool | None = None
    """True: as `strict` of every function. Default: false."""
    priority: Int64 | None = None
    """Within [the server's range](#priorities): the lowest waiting is computed first. Default:
    0."""
    citation_options: CitationOptions | None = None
    """A `mode` of Cohere's; without effect, because there are no documents to cite."""


_SCHEMA, _COHERE_SCHEMA = "response_format.schema", "response_format.json_schema"


@answers(
    create_chat_completion.at("/v2/chat", "Cohere", order=21),
    operation(CohereChat, CohereChatRequest, chunk=CohereChatEvent),
)
async def chat(request: Request, body: CohereChatRequest, model: Model) -> Response:
    """Answer a conversation in Cohere's shapes, in one piece or as a stream of its events."""
    asked = _as_chat_request(body)
    try:
        plan = await chat_plan(asked, request, model, most_tokens=body.max_tokens)
        form = CohereForm(service_of(request).new_id("chat"), model, plan)
        return await answer(request, model, plan, form, stream=body.stream)
    except RefusalError as error:
        raise renamed(chat_error(error, asked), _SCHEMA, _COHERE_SCHEMA) from None


chat_of_vllm = chat.at("/cohere/v2/chat", order=22)

_CHOICES: Mapping[str | None, Literal["required", "none"]] = {
    "REQUIRED": "required",
    "NONE": "none",
}


def _tools(body: CohereChatRequest) -> list[Tool] | None:
    """The tools, all of them strict by `strict_tools`."""
    if not body.tools or not body.strict_tools:
        return body.tools
    return [replace(tool, function=replace(tool.function, strict=True)) for tool in body.tools]


def _as_chat_request(body: CohereChatRequest) -> ChatRequest:
    """`body` as a request of `/v1/chat/completions`, without `max_tokens`."""
    form = body.response_format
    return ChatRequest(
        messages=body.messages,
        model=body.model,
        stream=body.stream,
        stop=body.stop_sequences,
        temperature=body.temperature,
        seed=body.seed,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        top_k=body.k,
        top_p=body.p,
        logprobs=body.logprobs,
        response_format=JsonObject(form.json_schema) if isinstance(form, CohereJson) else form,
        tools=_tools(body),
        tool_choice=_CHOICES.get(body.tool_choice),
        priority=body.priority,
    )
