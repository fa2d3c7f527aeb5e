"""`/v1/messages`: a conversation's next message, as Anthropic answers."""

from fastapi import Request, Response
from msgspec import Struct

from server.api.chat import chat_options, chat_plan, create_chat_completion
from server.api.declaration import answers
from server.api.messages.answer import AssistantAnswer, MessageEvent, MessageForm
from server.api.messages.conversion import AsChat
from server.api.messages.requests import (
    CountTokensRequest,
    MessagesRequest,
    ThinkingDisabled,
    ThinkingEnabled,
)
from server.api.tokenize import tokens_of
from server.errors import ERRORS
from server.generation.conversation import chat_prompt
from server.generation.generation import answer
from server.generation.requested_tools import requested_tools
from server.generation.signed_reasoning import SignedReasoning
from server.http.anthropic_errors import AnthropicErrorBody
from server.service.endpoint import Errors, operation
from server.service.service import Model, record_of, service_of

ANTHROPIC_ERRORS = Errors(
    AnthropicErrorBody,
    dict.fromkeys(sorted({kind.status for kind in ERRORS.values()}), "Anthropic's error"),
)


class TokenCount(Struct, frozen=True):
    """The answer of `/v1/messages/count_tokens`."""

    input_tokens: int
    """Tokens of the prompt, special tokens included."""


@answers(
    create_chat_completion.at("/v1/messages", "Anthropic", order=22),
    operation(AssistantAnswer, MessagesRequest, chunk=MessageEvent, errors=ANTHROPIC_ERRORS),
)
async def create_message(request: Request, body: MessagesRequest, model: Model) -> Response:
    """Answer a conversation in Anthropic's shapes, in one piece or as a stream of its events."""
    reasoning, thinking = SignedReasoning.of(request), body.thinking
    asked = AsChat(body, reasoning)
    budget = thinking.budget_tokens if isinstance(thinking, ThinkingEnabled) else None
    omits = not isinstance(thinking, ThinkingDisabled | None) and thinking.display == "omitted"
    with asked.fields.named(record_of(request)):
        plan = await chat_plan(
            asked.request,
            request,
            model,
            most_tokens=body.max_tokens,
            most_reasoning=budget,
            may_lose_reasoning=True,
        )
        answer_id = service_of(request).new_id("msg").replace("-", "_")
        form = MessageForm(answer_id, model, plan, reasoning, omits_thinking=omits)
        return await answer(request, model, plan, form, stream=body.stream)


@answers(
    create_message.at("/v1/messages/count_tokens", "Anthropic", order=23),
    operation(TokenCount, CountTokensRequest, errors=ANTHROPIC_ERRORS),
)
async def count_tokens(request: Request, body: CountTokensRequest, model: Model) -> TokenCount:
    """Count the tokens of a conversation's prompt."""
    asked = AsChat(body, SignedReasoning.of(request))
    with asked.fields.named(record_of(request)):
        tools = requested_tools(asked.request)
        options = chat_options(asked.request, tools, may_lose_reasoning=True)
        text = await chat_prompt(request, model, asked.request.messages, options)
    return TokenCount(len(await tokens_of(request, model, text, special=False)))
