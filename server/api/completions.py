"""`/v1/completions`: text that continues a prompt."""

import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from functools import partial

import msgspec
from fastapi import Request, Response
from msgspec import UnsetType

from engine_core.messages import SamplingParams
from engine_core.refusal import RefusalError
from server.generation.completion.completion_choices import CompletionFormat
from server.generation.generation import Generation, generate
from server.generation.plan import GenerationPlan, check_choices, choices, generation_plan
from server.generation.requested_sampling import sampling_params
from server.generation.stream import (
    StreamedUsage,
    encoded_choices,
    stream_events,
    streamed_usage,
)
from server.generation.text_piece import TextPiece
from server.http.body import Body
from server.http.disconnect import CancelOnDisconnect
from server.http.openapi import operation
from server.http.sse import EventStream
from server.metrics.request_record import record_of
from server.schemas.common import CompletionUsage
from server.schemas.completions import Completion, CompletionChoice, CompletionRequest
from server.schemas.field_names import value_under_any_name
from server.service.endpoint import Endpoint
from server.service.inputs import parse_items
from server.service.registry import Model
from server.service.service import Service, json_answer, service_of
from server.settings.server_config import Limits

DEFAULT_MAX_TOKENS = 16

COMPLETIONS = Endpoint(
    "POST",
    "/v1/completions",
    operation(Completion, CompletionRequest, chunk=Completion),
    tasks=("generate",),
    order=10,
)
_body = Body(CompletionRequest)


@COMPLETIONS.answered_by
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts, in one answer or as a stream of server-sent events."""
    service = service_of(request)
    body = await _body.read(request, service.limits.max_body_bytes)
    model = service.find(record_of(request), body.model, COMPLETIONS, body.priority or 0)
    usage = streamed_usage(body)
    plan = completion_plan(body, model, service.limits)
    answer = _Answer(service, model, CompletionFormat(body, model))
    with CancelOnDisconnect(request.receive):
        generating = generate(request, model, plan)
        if body.stream:
            return await EventStream.begin(answer.events(generating, usage))
        return await answer.whole(generating)


class _Answer:
    """One answer, whole or as a stream."""

    def __init__(self, service: Service, model: Model, form: CompletionFormat) -> None:
        self._id = service.new_id("cmpl")
        self._created = int(time.time())
        self._model = model.name
        self._fingerprint = model.fingerprint
        self._form = form

    async def whole(self, generating: AbstractAsyncContextManager[Generation]) -> Response:
        """The answer once all choices have ended."""
        async with generating as generation:
            pieces = await generation.final_pieces()
            async with generation.encoding():
                choices = await encoded_choices(pieces, self._form.choice)
                return json_answer(self._completion(choices, generation.usage()))

    def events(
        self, generating: AbstractAsyncContextManager[Generation], usage: StreamedUsage
    ) -> AsyncGenerator[bytes]:
        """The answer as a stream."""
        return stream_events(
            generating,
            usage,
            self._chunks,
            partial(self._completion, []),
        )

    async def _chunks(
        self, piece: TextPiece, usage: CompletionUsage | UnsetType | None
    ) -> list[Completion]:
        return [self._completion([await self._form.choice(piece)], usage)]

    def _completion(
        self, choices: list[CompletionChoice], usage: CompletionUsage | UnsetType | None
    ) -> Completion:
        return Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            system_fingerprint=self._fingerprint,
            choices=choices,
            usage=usage,
        )


def completion_plan(body: CompletionRequest, model: Model, limits: Limits) -> GenerationPlan:
    """The request, checked and with the model's own defaults in it. Raises RefusalError."""
    best_of = _best_of(body, limits)
    if body.stream and body.prompt_logprobs is not None:
        raise RefusalError(
            "invalid_request", "prompt_logprobs: not with `stream`", "prompt_logprobs"
        )
    plan = generation_plan(
        body,
        model,
        limits,
        prompts=parse_items(body.prompt, "prompt", model, limits.max_inputs),
        params=_params(body, model, ranked=best_of > (body.n or 1)),
        logprobs=body.logprobs,
        add_special_tokens=body.add_special_tokens is not False,
    )
    return msgspec.structs.replace(
        plan,
        width=best_of,
        echo=bool(body.echo),
        return_token_ids=bool(body.return_token_ids),
    )


def _params(body: CompletionRequest, model: Model, *, ranked: bool) -> SamplingParams:
    """Choices are `ranked` by their tokens' log-probabilities, which the engine then reports."""
    scored = [body.logprobs if body.echo else None, body.prompt_logprobs]
    return sampling_params(
        body,
        model,
        max_tokens=_max_tokens(body),
        default_max_tokens=DEFAULT_MAX_TOKENS,
        logprobs=0 if ranked and body.logprobs is None else body.logprobs,
        prompt_logprobs=max((width for width in scored if width is not None), default=None),
    )


def _max_tokens(body: CompletionRequest) -> int | None:
    """Raises RefusalError for two numbers."""
    newer, older = body.max_completion_tokens, body.max_tokens
    return value_under_any_name(("max_tokens", older), ("max_completion_tokens", newer))


def _best_of(body: CompletionRequest, limits: Limits) -> int:
    """How many choices of each prompt are generated. Raises RefusalError."""
    n = choices(body, limits)
    best_of = n if body.best_of is None else body.best_of
    check_choices(best_of, "best_of", limits)
    if best_of < n:
        raise RefusalError("invalid_request", f"best_of: {best_of} is less than n, {n}", "best_of")
    if best_of > n and body.stream:
        raise RefusalError("invalid_request", "best_of: at most n with `stream`", "best_of")
    return best_of
