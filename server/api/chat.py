"""`/v1/chat/completions`: a conversation's next message."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from fastapi import Request, Response
from msgspec import Struct

from engine_core.refusal import RefusalError
from server.api.declaration import answers
from server.generation.chat_turn import CallIds, ChatTurn
from server.generation.choice import TextPiece, absent
from server.generation.conversation import ChatOptions, chat_prompt, last_answer
from server.generation.generation import Generation, TextForm, answer
from server.generation.plan import GenerationPlan, choices, generation_plan
from server.generation.planned_turn import with_turn
from server.generation.requested_tools import RequestedTools, requested_tools
from server.generation.token_logprobs import TokenLogprobs
from server.schemas.chat import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatFinishReason,
    ChatLogprobs,
    ChatRequest,
    ChunkChoice,
    Delta,
)
from server.schemas.common import invalid, renamed, value_under_any_name
from server.service.endpoint import Endpoint, operation
from server.service.inputs import text_items
from server.service.service import Model, service_of


@answers(
    Endpoint("POST", "/v1/chat/completions", "OpenAI", tasks=("generate",), order=20),
    operation(ChatCompletion, ChatRequest, chunk=ChatChunk),
)
async def create_chat_completion(request: Request, body: ChatRequest, model: Model) -> Response:
    """Answer a conversation, in one piece or as a stream of server-sent events."""
    plan = await chat_plan(body, request, model)
    form = ChatForm(body, model, service_of(request).new_id("chatcmpl"), plan)
    try:
        return await answer(request, model, plan, form, stream=body.stream)
    except RefusalError as error:
        raise chat_error(error, body) from None


async def chat_plan(
    body: ChatRequest,
    request: Request,
    model: Model,
    *,
    most_tokens: int | None = None,
    most_reasoning: int | None = None,
    may_lose_reasoning: bool = False,
) -> GenerationPlan:
    """The request, checked, its prompt rendered, by default for `most_tokens`, of which
    `most_reasoning` are reasoning if the model reasons. Raises RefusalError, also for earlier
    reasoning that the template writes nowhere, unless the request `may_lose_reasoning`."""
    newer, older = body.max_completion_tokens, body.max_tokens
    tools = requested_tools(body)
    plan = generation_plan(
        body,
        model,
        width=choices(body, service_of(request).limits),
        max_tokens=value_under_any_name(("max_completion_tokens", newer), ("max_tokens", older)),
        default_max_tokens=most_tokens,
        logprobs=_top_logprobs(body),
        # Templates write the special tokens themselves.
        add_special_tokens=bool(body.add_special_tokens),
    )
    options = chat_options(body, tools, may_lose_reasoning=may_lose_reasoning)
    # Rendered last: a template takes its time.
    try:
        text = await chat_prompt(request, model, body.messages, options)
    except RefusalError as error:
        raise renamed(error, "tools", tools.field if tools else "tools") from None
    plan = msgspec.structs.replace(plan, prompts=text_items(text, "messages"))
    form = model.chat.found.form
    budget = None if body.thinking_token_budget == -1 else body.thinking_token_budget
    if budget is None and form is not None and form.reasoning is not None:
        budget = most_reasoning
    return with_turn(plan, form, text, tools, budget)


def chat_options(
    body: ChatRequest, tools: RequestedTools | None, *, may_lose_reasoning: bool
) -> ChatOptions:
    """The options that the template gets beside the messages."""
    variables = {**(body.chat_template_kwargs or {})}
    if body.reasoning_effort == "none":
        variables = {"enable_thinking": False, "thinking": False, **variables}
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
    return ChatOptions(
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=variables,
        tools=tools.described if tools else None,
        may_lose_reasoning=may_lose_reasoning,
    )


def _top_logprobs(body: ChatRequest) -> int | None:
    """The number of alternatives to each token, None for no log-probabilities. Raises
    RefusalError."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise invalid("top_logprobs", "only with `logprobs`")
    return None


def chat_error(error: RefusalError, body: ChatRequest) -> RefusalError:
    """The engine's refusal with this endpoint's field for `prompt` or `max_tokens`."""
    param = error.param
    if param is not None and param.startswith("prompt"):
        param = "messages"
    elif param == "max_tokens" and body.max_tokens is None:
        param = "max_completion_tokens"
    return replace(error, param=param)


class ChatForm(TextForm):
    """One answer of `/v1/chat/completions`."""

    def __init__(
        self, body: ChatRequest, model: Model, answer_id: str, plan: GenerationPlan
    ) -> None:
        super().__init__(body, model, answer_id, ChatChunk)
        self._scores = None
        if plan.logprobs is not None:
            as_ids = bool(body.return_tokens_as_token_ids)
            self._scores = TokenLogprobs(model, plan.logprobs, as_ids=as_ids)
        ids = CallIds(answer_id, plan.turn)
        self._turn = ChatTurn(ids, as_function=bool(body.functions))
        self._echo = last_answer(body.messages) if body.echo else ""
        self._begun: set[int] = set()

    async def whole(self, pieces: Sequence[TextPiece], generation: Generation) -> ChatCompletion:
        return ChatCompletion(
            **self._named,
            choices=await self._choices(pieces),
            usage=generation.usage(),
            prompt_token_ids=pieces[0].prompt_ids,
            prompt_logprobs=await self._scores_of_prompt(pieces[0]),
        )

    async def choice(self, piece: TextPiece) -> ChatChoice:
        return ChatChoice(
            index=piece.index,
            message=self._turn.message(piece, self._echo),
            logprobs=await self._logprobs(piece),
            finish_reason=self._turn.finish_reason(piece),
            token_ids=piece.token_ids,
        )

    async def _chunks(self, piece: TextPiece) -> Sequence[Struct]:
        """The role before a message's first piece, the piece, its finish reason after the last.
        A piece's tokens come with its first chunk."""
        deltas: list[ChunkChoice] = []
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            # As OpenAI's: null before anything but text.
            content = None if piece.events and not piece.text else ""
            deltas.append(_delta(piece, Delta(role="assistant", content=content, refusal=None)))
            if self._echo:
                deltas.append(_delta(piece, Delta(content=self._echo)))
        added = self._turn.deltas(piece) if piece.events else ()
        if added or piece.text or piece.tokens or piece.token_ids:
            deltas.append(
                ChunkChoice(
                    index=piece.index,
                    delta=added[0] if added else Delta(content=piece.text),
                    logprobs=await self._logprobs(piece),
                    finish_reason=None,
                    token_ids=absent(piece.token_ids),
                )
            )
        for other in added[1:]:
            deltas.append(_delta(piece, other))  # noqa: PERF401
        if piece.finish_reason is not None:
            deltas.append(_delta(piece, Delta(), self._turn.finish_reason(piece)))
        chunks = [msgspec.structs.replace(self._chunk, choices=[delta]) for delta in deltas]
        # A call's end alone adds nothing.
        if chunks:
            chunks[0] = msgspec.structs.replace(
                chunks[0], prompt_token_ids=absent(piece.prompt_ids)
            )
        return chunks

    async def _logprobs(self, piece: TextPiece) -> ChatLogprobs | None:
        if self._scores is None:
            return None
        return ChatLogprobs(content=await self._scores.of(piece.tokens))


def _delta(piece: TextPiece, delta: Delta, finish: ChatFinishReason | None = None) -> ChunkChoice:
    """A choice without tokens."""
    return ChunkChoice(index=piece.index, delta=delta, logprobs=None, finish_reason=finish)
