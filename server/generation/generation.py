"""A generate job in flight: its choices as they grow, and its answer, whole or as events."""

import asyncio
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import msgspec
from fastapi import Request, Response
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace
from starlette.types import Scope

from engine_core.client.pending_jobs import GenerateStream
from engine_core.messages import RowOutput
from engine_core.refusal import RefusalError
from server.generation.choice import Choice, Prompt, TextPiece
from server.generation.plan import GenerationPlan
from server.generation.scores import HeldScores, prompt_logprobs
from server.http.answers import DONE, EventStream, error_event, event
from server.schemas.chat import ChatChunk
from server.schemas.common import (
    CompletionTokensDetails,
    CompletionUsage,
    PromptLogprobs,
    PromptTokensDetails,
)
from server.schemas.completions import Completion
from server.schemas.sampling import SamplingOptions, StreamOptions
from server.service.service import (
    Model,
    client_options,
    json_answer,
    record_of,
    service_of,
    time_left,
)

# Updates after which other tasks run. They pile up behind a client that reads slowly.
_AT_ONCE = 512
_encode = msgspec.json.Encoder().encode


class Generation:
    """The choices of one job, prompt by prompt, and their usage so far."""

    def __init__(
        self,
        request: Request,
        model: Model,
        plan: GenerationPlan,
        stream: GenerateStream,
        scores: HeldScores,
        started: float,
    ) -> None:
        """`stream` has no prompts if the deadline came before the engine accepted the job.
        `started` is the time of the request by time.perf_counter()."""
        service, record = service_of(request), record_of(request)
        self._record, self._scores = record, scores
        self._metrics = service.metrics.of_model(model.name)
        self._counted_at = started
        self._encoding = service.encoding
        self._plan = plan
        self._stream = stream
        self._unread: Iterator[RowOutput] = iter(())
        self._expired = not stream.answer.prompt_ids
        record.held_bytes = stream.held_bytes
        record.ignored = (*record.ignored, *stream.answer.ignored)
        self._prompt_tokens = stream.answer.prompt_tokens
        if self._expired:
            plan = msgspec.structs.replace(plan, echo=False)
        prompt_ids = stream.answer.prompt_ids or [b""] * len(plan.prompts)
        prompts = [Prompt(model, plan, position, ids) for position, ids in enumerate(prompt_ids)]
        rows = [prompt for prompt in prompts for _ in range(plan.width)]
        self.choices = [Choice(row, prompt, model, plan) for row, prompt in enumerate(rows)]
        self._metrics.prompt_tokens.add(sum(self._prompt_tokens))
        record.rows = len(self.choices)

    async def advance(self) -> Collection[Choice]:
        """Wait for the engine's updates, or the deadline, and return the changed choices, none once
        all have ended. Raises RefusalError if the job failed."""
        outputs = list(itertools.islice(self._unread, _AT_ONCE))
        if not outputs:
            self._unread = iter(await self._stream.next())
            outputs = list(itertools.islice(self._unread, _AT_ONCE))
        if not outputs and self._expired:
            return self._end_open_choices()
        if len(outputs) == _AT_ONCE:
            await asyncio.sleep(0)
        updated: dict[int, Choice] = {}
        tokens = scored = 0
        for output in outputs:
            choice = updated[output.row] = self.choices[output.row]
            tokens -= choice.tokens
            choice.apply(output)
            tokens += choice.tokens
            if output.scored is not None:
                scored += len(output.scored.chosen) // 4
            if choice.finish_reason is not None:
                self._stream.end_row(output.row)
        if tokens:
            self._count(tokens)
        self._scores.add(tokens, scored)
        return updated.values()

    async def final_pieces(self) -> list[TextPiece]:
        """Wait for the end, and return each choice of the answer as one piece. Raises RefusalError
        if the job failed, or the answer has become too large."""
        self._scores.streamed = False
        while await self.advance():
            pass
        pieces = [choice.next_piece() for choice in self._best()]
        return [piece for piece in pieces if piece is not None]

    def encoding(self) -> AbstractAsyncContextManager[None]:
        """A block in which to encode a whole answer: large ones one at a time."""
        return self._encoding if self._scores.are_many else nullcontext()

    def usage(self) -> CompletionUsage:
        """Exact counts, so far."""
        prompt = sum(self._prompt_tokens)
        completion = sum(choice.tokens for choice in self.choices)
        # A prompt's later rows may find its first row's blocks in the cache.
        cached = sum(choice.cached for choice in self.choices[:: self._plan.width])
        cached_of_prompt = PromptTokensDetails(cached)
        if self._plan.turn is None:
            return CompletionUsage(prompt, completion, prompt + completion, cached_of_prompt)
        reasoned = CompletionTokensDetails(sum(each.reasoning_tokens for each in self.choices))
        return CompletionUsage(prompt, completion, prompt + completion, cached_of_prompt, reasoned)

    def expire(self) -> None:
        """Stop the engine at the deadline. `advance` then ends the choices still open."""
        self._expired = True
        self._stream.abort()

    def record(self) -> None:
        """Fill the request's record, at any time."""
        record, usage = self._record, self.usage()
        record.prompt_tokens = usage.prompt_tokens
        record.output_tokens += usage.completion_tokens
        record.cached_tokens += usage.prompt_tokens_details.cached_tokens
        for choice in self.choices:
            if choice.finish_reason is not None:
                record.end_rows(choice.finish_reason)
        if self._stream.timing is not None:
            record.add_timing(self._stream.timing)
            record.decode_s = self._stream.decode_s

    def _best(self) -> list[Choice]:
        """The `n` likeliest choices of each prompt, the best first, numbered anew. Without more
        than `n`, all choices unchanged."""
        n, width = self._plan.n, self._plan.width
        if n == width:
            return self.choices
        best: list[Choice] = []
        for start in range(0, len(self.choices), width):
            rivals = self.choices[start : start + width]
            best += sorted(rivals, key=lambda choice: choice.likelihood, reverse=True)[:n]
        for index, choice in enumerate(best):
            choice.index = index
        return best

    def _end_open_choices(self) -> list[Choice]:
        late = [choice for choice in self.choices if choice.finish_reason is None]
        for choice in late:
            choice.end("timeout")
        return late

    def _count(self, tokens: int) -> None:
        now, metrics, record = time.perf_counter(), self._metrics, self._record
        if record.first_token_s is None:
            metrics.first_token_seconds.observe(now - self._counted_at)
            record.first_token_s = now - record.started
        else:
            metrics.next_token_seconds.observe(now - self._counted_at)
        self._counted_at = now
        metrics.generated_tokens.add(tokens)


@asynccontextmanager
async def generate(
    request: Request, model: Model, plan: GenerationPlan
) -> AsyncGenerator[Generation]:
    """Submit a job. The block begins once the engine has accepted it, or at the deadline. Its end
    aborts the job, and fills the request's record.

    Raises RefusalError if the engine refuses the job, or the ledger has no room.
    """
    service, record, started = service_of(request), record_of(request), time.perf_counter()
    key = record.client.share.number
    scored = plan.logprobs is not None or plan.params.prompt_logprobs is not None
    holding = service.ledger.account(key, "log-probabilities") if scored else nullcontext()
    with service.in_flight, holding as account:
        times = [plan.timeout, time_left(service.limits, record)]
        seconds = min((each for each in times if each is not None), default=None)
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        options = client_options(request, plan.options)
        stream = await model.engines.choose(options).generate(
            plan.params,
            texts=plan.prompts.texts,
            ids=plan.prompts.ids,
            n=plan.width,
            options=options,
            deadline=deadline,
        )
        scores = HeldScores(plan, account)
        generation = Generation(request, model, plan, stream, scores, started)
        timer = None if deadline is None else loop.call_at(deadline, generation.expire)
        try:
            with stream:
                yield generation
        finally:
            if timer is not None:
                timer.cancel()
            generation.record()


class AnswerForm(ABC):
    """One answer in the form of an API, with the fields that its request selects."""

    last: bytes = DONE
    """The event that ends each stream."""

    @abstractmethod
    async def whole(self, pieces: Sequence[TextPiece], generation: Generation) -> Struct:
        """The answer from one piece for each choice."""

    def begin(self) -> bytes:
        """The events before the first text."""
        return b""

    @abstractmethod
    async def events(self, pieces: Sequence[TextPiece], generation: Generation) -> bytes:
        """The events of pieces that came together."""

    @abstractmethod
    async def end(self, generation: Generation) -> bytes:
        """The events after the last text."""

    def failure(self, error: RefusalError, scope: Scope) -> bytes:
        """The events after an error on the way."""
        return error_event(error, scope)


class TextForm(AnswerForm):
    """The common base of completions and chat."""

    def __init__(
        self,
        body: SamplingOptions,
        model: Model,
        answer_id: str,
        chunk: type[ChatChunk] | type[Completion],
    ) -> None:
        self._prompt_logprobs = body.prompt_logprobs
        self._prompt_text = model.token_text
        self._usage = body.stream_options or StreamOptions()
        self._named: dict[str, Any] = {
            "id": answer_id,
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }
        self._chunk = chunk(**self._named, choices=[])

    async def events(self, pieces: Sequence[TextPiece], generation: Generation) -> bytes:
        usage = None if self._usage.include_usage else UNSET
        if self._usage.continuous_usage_stats:
            usage = generation.usage()
        chunks = [chunk for piece in pieces for chunk in await self._chunks(piece)]
        return b"".join(event(_encode(replace(chunk, usage=usage))) for chunk in chunks)

    async def end(self, generation: Generation) -> bytes:
        if not self._usage.include_usage:
            return b""
        return event(_encode(replace(self._chunk, usage=generation.usage())))

    @abstractmethod
    async def choice(self, piece: TextPiece) -> Struct:
        """A choice of a whole answer."""

    @abstractmethod
    async def _chunks(self, piece: TextPiece) -> Sequence[Struct]:
        """The chunks of a piece, without usage."""

    async def _scores_of_prompt(self, piece: TextPiece) -> PromptLogprobs | None:
        width = self._prompt_logprobs
        if width is None:
            return None
        return await prompt_logprobs(piece.prompt_tokens, width, self._prompt_text)

    async def _choices(self, pieces: Sequence[TextPiece]) -> list[Any]:
        """The choices of a whole answer as JSON, with other requests in between. Each repeats its
        prompt's fields."""
        choices: list[Any] = []
        for piece in pieces:
            if choices:
                await asyncio.sleep(0)
            choices.append(Raw(_encode(await self.choice(piece))))
        return choices


async def answer(
    request: Request, model: Model, plan: GenerationPlan, form: AnswerForm, *, stream: bool | None
) -> Response:
    """The answer once it has ended, or as a stream. Raises RefusalError as `generate` does."""
    generating = generate(request, model, plan)
    if stream:
        return await EventStream.begin(_events(generating, form), form.last, form.failure)
    async with generating as generation:
        pieces = await generation.final_pieces()
        async with generation.encoding():
            return json_answer(await form.whole(pieces, generation))


async def _events(
    generating: AbstractAsyncContextManager[Generation], form: AnswerForm
) -> AsyncGenerator[bytes]:
    """Yield an empty item once the engine has accepted the job, then the events of each step. If
    the engine fails, all certain text has been sent."""
    async with generating as generation:
        yield b""
        if begin := form.begin():
            yield begin
        while updated := await generation.advance():
            pieces = [piece for choice in updated if (piece := choice.next_piece()) is not None]
            if events := await form.events(pieces, generation):
                yield events
        end = await form.end(generation)
    yield end + form.last
