"""`/v1/completions`: text that goes on from a prompt."""

import time
from collections.abc import AsyncGenerator

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType

from server.body import Body
from server.config import Limits
from server.disconnect import CancelOnDisconnect
from server.gate import CLIENT_LEFT
from server.generation import GenerationPlan, generation
from server.openapi import operation
from server.prompts import parse_items
from server.registry import Model
from server.sampling import choices, sampling_params, stop_strings, streams_usage
from server.schemas.completions import (
    Completion,
    CompletionChoice,
    CompletionOptionsNotServed,
    CompletionRequest,
    CompletionUsage,
)
from server.service import Service, json_answer, service_of
from server.sse import DONE, EventStream, event

DEFAULT_MAX_TOKENS = 16

router = APIRouter()
_body = Body(CompletionRequest, not_served=CompletionOptionsNotServed)


@router.post("/v1/completions", **operation(Completion, CompletionRequest, streams=True))
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts, in one answer or as a stream of server-sent events."""
    service = service_of(request)
    body = await _body.read(request, service.limits.max_body_bytes)
    model = service.find(body.model, "/v1/completions")
    with_usage = streams_usage(body)
    plan = _plan(body, model, service.limits)
    answers = _Answers(service, model)
    with CancelOnDisconnect(request.receive):
        if body.stream:
            events = _events(service, model, plan, answers, with_usage=with_usage)
            return await EventStream.begin(events)
        return json_answer(await _complete(service, model, plan, answers))
    return Response(status_code=CLIENT_LEFT)  # nobody reads it: the block above was cancelled


async def _complete(
    service: Service, model: Model, plan: GenerationPlan, answers: "_Answers"
) -> Completion:
    async with generation(service, model, plan) as job:
        while await job.news():
            pass
        news = [choice.news() for choice in job.choices]
        return answers.completion([piece for piece in news if piece is not None], job.usage())


async def _events(
    service: Service,
    model: Model,
    plan: GenerationPlan,
    answers: "_Answers",
    *,
    with_usage: bool,
) -> AsyncGenerator[bytes]:
    """An empty item once the engine has accepted, then the news of each step in one item."""
    encode = msgspec.json.Encoder().encode
    usage = None if with_usage else UNSET
    async with generation(service, model, plan) as job:
        yield b""
        while touched := await job.news():
            pieces = [piece for choice in touched if (piece := choice.news()) is not None]
            if pieces:
                chunks = (answers.completion([piece], usage) for piece in pieces)
                yield b"".join([event(encode(chunk)) for chunk in chunks])
        last = event(encode(answers.completion([], job.usage()))) if with_usage else b""
    yield last + DONE


class _Answers:
    """What the chunks of one answer share."""

    def __init__(self, service: Service, model: Model) -> None:
        self._id = service.new_id("cmpl")
        self._created = int(time.time())
        self._model = model.name

    def completion(
        self, choices: list[CompletionChoice], usage: CompletionUsage | UnsetType | None
    ) -> Completion:
        """An answer, or a chunk of one."""
        return Completion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )


def _plan(body: CompletionRequest, model: Model, limits: Limits) -> GenerationPlan:
    """The request, checked and with the model's own defaults in it. Raises APIError."""
    return GenerationPlan(
        prompts=parse_items(body.prompt, "prompt", model, limits.max_inputs),
        n=choices(body, limits),
        params=sampling_params(
            body,
            model.served.generation,
            max_tokens=body.max_tokens or DEFAULT_MAX_TOKENS,
            logprobs=body.logprobs,
            prompt_logprobs=body.logprobs if body.echo else None,
        ),
        stops=stop_strings(body),
        logprobs=body.logprobs,
        echo=bool(body.echo),
        cache_salt=body.cache_salt or "",
    )
