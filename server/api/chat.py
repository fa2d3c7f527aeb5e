"""`/v1/chat/completions`: a conversation's next message."""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UnsetType

from engine_core.client.pending_jobs import EngineError
from server.errors import APIError
from server.generation.chat.chat_logprobs import ChatSpelling
from server.generation.chat.chat_prompt import chat_prompt
from server.generation.chat.conversation import ChatOptions
from server.generation.generation import Generation, generation
from server.generation.plan import GenerationPlan
from server.generation.sampling_params import generation_plan, sampling_params, streamed_usage
from server.generation.stream import StreamedUsage, stream_events
from server.http.body import Body
from server.http.disconnect import CancelOnDisconnect
from server.http.openapi import operation
from server.http.sse import EventStream
from server.schemas.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatRequest,
    ChunkChoice,
    Delta,
)
from server.schemas.completions import CompletionChoice, CompletionUsage
from server.schemas.field_names import given
from server.service.inputs import text_items
from server.service.registry import Model
from server.service.service import Service, json_answer, service_of

router = APIRouter()
_body = Body(ChatRequest)


@router.post("/v1/chat/completions", **operation(ChatCompletion, ChatRequest, chunk=ChatChunk))
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, in one piece or as a stream of server-sent events."""
    service = service_of(request)
    body = await _body.read(request, service.limits.max_body_bytes)
    model = service.find(body.model, "/v1/chat/completions", body.priority or 0)
    usage = streamed_usage(body)
    with CancelOnDisconnect(request.receive):
        plan = await _plan(body, service, model)
        answers = _Answers(service, model, plan)
        try:
            if body.stream:
                return await EventStream.begin(answers.events(usage))
            return json_answer(await _complete(answers))
        except EngineError as error:
            raise _of_chat(error, body) from None


async def _complete(answers: "_Answers") -> ChatCompletion:
    async with answers.generation() as job:
        while await job.news():
            pass
        news = [choice.news() for choice in job.choices]
        return answers.completion([piece for piece in news if piece is not None], job.usage())


class _Answers:
    """What the parts of one answer share."""

    def __init__(self, service: Service, model: Model, plan: GenerationPlan) -> None:
        self._id = service.new_id("chatcmpl")
        self._created = int(time.time())
        self._service, self._model = service, model
        self._spelling: ChatSpelling | None = None
        if plan.logprobs is not None:
            self._spelling = ChatSpelling(model, as_ids=plan.tokens_as_ids)
            # On their way here they are keyed by the token's spelling, which ids alone tell apart.
            plan = msgspec.structs.replace(plan, tokens_as_ids=True)
        self._plan = plan
        self._begun: set[int] = set()

    def generation(self) -> AbstractAsyncContextManager[Generation]:
        """The job behind the answer."""
        return generation(self._service, self._model, self._plan)

    def events(self, usage: StreamedUsage) -> AsyncGenerator[bytes]:
        """The answer as a stream."""
        return stream_events(
            self.generation(),
            usage,
            lambda piece, used: (self._chunk([choice], used) for choice in self._parts(piece)),
            partial(self._chunk, []),
        )

    def completion(self, pieces: list[CompletionChoice], usage: CompletionUsage) -> ChatCompletion:
        """The whole answer."""
        choices = [
            ChatChoice(
                index=piece.index,
                message=AssistantMessage(content=piece.text),
                logprobs=self._logprobs(piece),
                finish_reason=piece.finish_reason,
            )
            for piece in pieces
        ]
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model.name,
            choices=choices,
            usage=usage,
        )

    def _chunk(
        self, choices: list[ChunkChoice], usage: CompletionUsage | UnsetType | None
    ) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._model.name,
            choices=choices,
            usage=usage,
        )

    def _parts(self, piece: CompletionChoice) -> Iterator[ChunkChoice]:
        """The role before a message's first piece, the piece, how it ended behind the last."""
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            yield _part(piece, Delta(role="assistant", content="", refusal=None))
        logprobs = self._logprobs(piece)
        if piece.text or (logprobs is not None and logprobs.content):
            yield _part(piece, Delta(content=piece.text), logprobs)
        if piece.finish_reason is not None:
            yield ChunkChoice(
                index=piece.index,
                delta=Delta(),
                logprobs=None,
                finish_reason=piece.finish_reason,
            )

    def _logprobs(self, piece: CompletionChoice) -> ChatLogprobs | None:
        if self._spelling is None or piece.logprobs is None:
            return None
        return self._spelling.told(piece.logprobs, self._plan.logprobs or 0)


def _part(
    piece: CompletionChoice, delta: Delta, logprobs: ChatLogprobs | None = None
) -> ChunkChoice:
    return ChunkChoice(index=piece.index, delta=delta, logprobs=logprobs, finish_reason=None)


async def _plan(body: ChatRequest, service: Service, model: Model) -> GenerationPlan:
    """The request, checked, its prompt rendered. Raises APIError."""
    max_tokens = _max_tokens(body)
    logprobs = _top_logprobs(body)
    params = sampling_params(
        body,
        model.served.generation,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=None,
    )
    text = await chat_prompt(service, model, body.messages, _options(body))
    return generation_plan(
        body,
        model,
        service.limits,
        prompts=text_items([text]),
        params=params,
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
    """None is what the context has left. Raises APIError for two numbers."""
    newer, older = body.max_completion_tokens, body.max_tokens
    return given(("max_completion_tokens", newer), ("max_tokens", older))[1]


def _top_logprobs(body: ChatRequest) -> int | None:
    """The alternatives to tell beside each token; None is no log-probabilities at all. Raises
    APIError for alternatives without."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise APIError("invalid_request", "top_logprobs: only with `logprobs`", "top_logprobs")
    return None


def _of_chat(error: EngineError, body: ChatRequest) -> APIError:
    """The engine's refusal in this endpoint's names: it knows of a prompt and of max_tokens."""
    param = error.param
    if param is not None and param.startswith("prompt"):
        param = "messages"
    elif param == "max_tokens" and body.max_tokens is None:
        param = "max_completion_tokens"
    told = APIError.from_engine(error)
    told.param = param
    return told
