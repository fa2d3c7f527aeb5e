"""One answer of `/v1/responses`, whole or as events."""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace
from starlette.types import Scope

from engine_core.refusal import RefusalError
from server.api.responses.objects import (
    CachedInput,
    EventType,
    IncompleteDetails,
    ReasonedOutput,
    ResponseEvent,
    ResponseFailure,
    ResponseObject,
    ResponseUsage,
)
from server.api.responses.output import OutputWriter
from server.api.responses.requests import ReasoningOptions, ResponsesRequest, TextOptions
from server.api.responses.tools import OfferedTools
from server.generation.chat_turn import CallIds
from server.generation.choice import TextPiece
from server.generation.generation import AnswerForm, Generation
from server.generation.plan import GenerationPlan
from server.generation.token_logprobs import TokenLogprobs
from server.http.answers import named_event
from server.schemas.common import CompletionUsage, FinishReason
from server.schemas.sampling import PlainText
from server.service.service import Model
from server.turns.turn_parser import Event, TextDelta

Keep = Callable[[ResponseObject], Awaitable[bool]]
"""Stores an answer. Returns whether it could. Raises RefusalError if it had to be."""

_encode = msgspec.json.Encoder().encode
_CUT: Mapping[FinishReason, Literal["max_output_tokens", "timeout"]] = {
    "length": "max_output_tokens",
    "timeout": "timeout",
}


class ResponseForm(AnswerForm):
    """One answer of `/v1/responses`."""

    def __init__(
        self,
        body: ResponsesRequest,
        model: Model,
        answer_id: str,
        plan: GenerationPlan,
        tools: OfferedTools,
        *,
        sign: Callable[[str], str] | None,
        keep: Keep | None,
    ) -> None:
        """`sign` signs reasoning, `keep` stores the answer."""
        begun = _begun(body, model, answer_id, plan, tools)
        self._answer, self._keep = replace(begun, store=keep is not None), keep
        ids = CallIds(answer_id, plan.turn)
        self._writer = OutputWriter(answer_id, ids, tools.names, sign)
        self._scores = None if plan.logprobs is None else TokenLogprobs(model, plan.logprobs)

    async def whole(self, pieces: Sequence[TextPiece], generation: Generation) -> ResponseObject:
        await self._read(pieces)
        deque(self._ending(generation), maxlen=0)
        return await self._ended(generation)

    def begin(self) -> bytes:
        return self._lifecycle("response.created") + self._lifecycle("response.in_progress")

    async def events(self, pieces: Sequence[TextPiece], generation: Generation) -> bytes:
        return b"".join(map(_event, await self._read(pieces)))

    async def end(self, generation: Generation) -> bytes:
        closing = b"".join(map(_event, self._ending(generation)))
        self._answer = await self._ended(generation)
        return closing + self._lifecycle(
            "response.completed" if self._answer.completed_at else "response.incomplete"
        )

    def failure(self, error: RefusalError, scope: Scope) -> bytes:
        failed = ResponseFailure(code=error.code, message=error.message)
        self._answer = replace(
            self._answer, status="failed", error=failed, output=self._writer.items
        )
        said = self._writer.event(
            "error", code=error.code, message=error.message, param=error.param
        )
        return _event(said) + self._lifecycle("response.failed")

    async def _read(self, pieces: Sequence[TextPiece]) -> list[ResponseEvent]:
        """The events of pieces, whose tokens come with their text."""
        events: list[ResponseEvent] = []
        for piece in pieces:
            if self._scores is not None:
                self._writer.add_scores(await self._scores.of(piece.tokens))
            for read in _events_of(piece):
                events += self._writer.read(read, piece.index)
        return events

    def _ending(self, generation: Generation) -> Iterator[ResponseEvent]:
        """The events of the last item's end. An answer without anything has an empty message."""
        choice = generation.choices[0]
        if not self._writer.items:
            yield from self._writer.read(TextDelta(""), choice.index)
        yield from self._writer.end("incomplete" if choice.finish_reason in _CUT else "completed")

    async def _ended(self, generation: Generation) -> ResponseObject:
        """The whole answer, which is stored before the client can refer to it."""
        cut = _CUT.get(generation.choices[0].finish_reason or "stop")
        answer = replace(
            self._answer,
            status="incomplete" if cut else "completed",
            completed_at=None if cut else int(time.time()),
            incomplete_details=IncompleteDetails(reason=cut) if cut else None,
            output=self._writer.items,
            usage=response_usage(generation.usage()),
        )
        if self._keep is None or await self._keep(answer):
            return answer
        return replace(answer, store=False)

    def _lifecycle(self, kind: EventType) -> bytes:
        return _event(self._writer.event(kind, response=self._answer))


def _begun(
    body: ResponsesRequest,
    model: Model,
    answer_id: str,
    plan: GenerationPlan,
    tools: OfferedTools,
) -> ResponseObject:
    """The answer before anything is written."""
    sampling = plan.params.sampling
    return ResponseObject(
        id=answer_id,
        created_at=int(time.time()),
        status="in_progress",
        model=model.name,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning=body.reasoning or ReasoningOptions(),
        safety_identifier=body.safety_identifier,
        service_tier=body.service_tier or "default",
        text=_text(body.text),
        tool_choice=body.tool_choice or "auto",
        tools=tools.served,
        top_logprobs=body.top_logprobs or 0,
        truncation=body.truncation or "disabled",
        user=body.user,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
    )


def _text(given: TextOptions | None) -> TextOptions:
    """The text's options, with what leaving a format out means."""
    text = given or TextOptions()
    return replace(text, format=text.format or PlainText())


def _events_of(piece: TextPiece) -> Sequence[Event]:
    return piece.events or ([TextDelta(piece.text)] if piece.text else [])


def _event(data: ResponseEvent) -> bytes:
    return named_event(data.type, _encode(data))


def response_usage(usage: CompletionUsage) -> ResponseUsage:
    """The counts as this API has them."""
    details = usage.completion_tokens_details
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=CachedInput(cached_tokens=usage.prompt_tokens_details.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=ReasonedOutput(
            reasoning_tokens=details.reasoning_tokens if details else 0
        ),
        total_tokens=usage.total_tokens,
    )
