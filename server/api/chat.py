"""`/v1/chat/completions`: a conversation's next message."""

from dataclasses import replace

from fastapi import Request, Response

from engine_core.refusal import RefusalError
from server.generation.chat.chat_choices import ChatForm
from server.generation.chat.conversation import ChatOptions, chat_prompt
from server.generation.generation import generate
from server.generation.plan import GenerationPlan, choices, generation_plan
from server.generation.requested_sampling import sampling_params
from server.generation.stream import answer
from server.http.body import Body, CancelOnDisconnect
from server.schemas.chat import ChatChunk, ChatCompletion, ChatRequest
from server.schemas.field_names import value_under_any_name
from server.service.endpoint import Endpoint, operation
from server.service.inputs import text_items
from server.service.service import Model, record_of, service_of

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
    body = await _body.read(request)
    model = service.find(record_of(request), body.model, CHAT_COMPLETIONS, body.priority or 0)
    with CancelOnDisconnect(request.receive):
        plan = await chat_plan(body, request, model)
        form = ChatForm(body, model, service.new_id("chatcmpl"), plan.logprobs)
        try:
            return await answer(generate(request, model, plan), form, stream=body.stream)
        except RefusalError as error:
            raise chat_error(error, body) from None


async def chat_plan(body: ChatRequest, request: Request, model: Model) -> GenerationPlan:
    """The request, checked, its prompt rendered. Raises RefusalError."""
    max_tokens = _max_tokens(body)
    logprobs = _top_logprobs(body)
    params = sampling_params(
        body,
        model,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
    )
    text = await chat_prompt(request, model, body.messages, _options(body))
    return generation_plan(
        body,
        model,
        prompts=text_items(text, "messages"),
        params=params,
        width=choices(body, service_of(request).limits),
        logprobs=logprobs,
        # Templates write the special tokens themselves.
        add_special_tokens=bool(body.add_special_tokens),
    )


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
