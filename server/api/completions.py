"""`/v1/completions`: text that goes on from a prompt."""

import time
from collections.abc import AsyncGenerator

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType

from engine_core.messages import SamplingParams
from server.body import Body
from server.config import GenerationDefaults, Limits
from server.disconnect import CancelOnDisconnect
from server.errors import APIError
from server.gate import CLIENT_LEFT
from server.generation import GenerationPlan, generation
from server.openapi import operation
from server.prompts import parse_items
from server.registry import Model
from server.schemas.common import INT64_MAX
from server.schemas.completions import (
    Completion,
    CompletionChoice,
    CompletionOptionsNotServed,
    CompletionRequest,
    CompletionUsage,
)
from server.service import Service, json_answer, service_of
from server.sse import DONE, EventStream, event
from server.structured import grammar_of

DEFAULT_MAX_TOKENS = 16

router = APIRouter()
_body = Body(CompletionRequest, not_served=CompletionOptionsNotServed)


@router.post("/v1/completions", **operation(Completion, CompletionRequest, streams=True))
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts, in one answer or as a stream of server-sent events."""
    service = service_of(request)
    body = await _body.read(request, service.limits.max_body_bytes)
    model = service.find(body.model, "/v1/completions")
    plan = _plan(body, model, service.limits)
    answers = _Answers(service, model)
    with CancelOnDisconnect(request.receive):
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            events = _events(service, model, plan, answers, with_usage=bool(with_usage))
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
    n = body.n or 1
    if n > limits.max_n:
        raise APIError("too_large", f"n: {n}; a request takes {limits.max_n}", "n")
    if body.stream_options is not None and not body.stream:
        raise APIError(
            "invalid_request", "stream_options: only with `stream`", param="stream_options"
        )
    stops = body.stop or []
    return GenerationPlan(
        prompts=parse_items(body.prompt, "prompt", model, limits.max_inputs),
        n=n,
        params=_sampling(body, model.served.generation),
        stops=(stops,) if isinstance(stops, str) else tuple(stops),
        logprobs=body.logprobs,
        echo=bool(body.echo),
        cache_salt=body.cache_salt or "",
    )


def _sampling(body: CompletionRequest, defaults: GenerationDefaults) -> SamplingParams:
    temperature = defaults.temperature if body.temperature is None else body.temperature
    top_k = defaults.top_k if body.top_k is None else body.top_k
    return SamplingParams(
        max_tokens=body.max_tokens or DEFAULT_MAX_TOKENS,
        temperature=temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        top_k=max(top_k, 0),
        seed=None if body.seed is None else body.seed & INT64_MAX,
        stop_token_ids=frozenset(defaults.eos_token_ids),
        ignore_eos=bool(body.ignore_eos),
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        min_p=body.min_p or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        logit_bias=body.logit_bias or {},
        grammar=grammar_of(body),
    )
