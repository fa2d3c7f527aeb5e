"""A generate job in flight: accepted by the engine, its choices as they grow."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import msgspec
from starlette.requests import Request

from engine_core.client.pending_jobs import GenerateStream
from engine_core.messages import RowOutput
from server.generation.choice import Choice, Prompt, TextPiece
from server.generation.plan import GenerationPlan
from server.generation.scores import HeldScores
from server.metrics.request_record import RequestRecord
from server.schemas.common import CompletionUsage, PromptTokensDetails
from server.service.registry import Model
from server.service.service import Service, record_of, service_of
from server.service.time_limit import time_left

# Updates pile up behind a client that reads slowly: other tasks run after so many of them.
_AT_ONCE = 512


class Generation:
    """The choices of one job, prompt by prompt, and their usage so far."""

    def __init__(
        self,
        service: Service,
        record: RequestRecord,
        model: Model,
        plan: GenerationPlan,
        stream: GenerateStream,
        scores: HeldScores,
        started: float,
    ) -> None:
        """`stream` has ended, without any prompt, if the deadline came before the engine accepted
        the job; `started` is when the request came, by time.perf_counter()."""
        self._record, self._scores = record, scores
        self._metrics = service.metrics.of_model(model.name)
        self._counted_at = started
        self._has_tokens = False
        self._encoding = service.encoding
        self._plan = plan
        self._stream = stream
        self._unread: Iterator[RowOutput] = iter(())
        self._expired = not stream.prompt_ids
        record.held_bytes, record.ignored = stream.held_bytes, stream.ignored
        self._prompt_tokens = stream.prompt_tokens
        if self._expired:
            plan = msgspec.structs.replace(plan, echo=False)
        self.choices = _choices(model, plan, stream.prompt_ids or [b""] * len(plan.prompts))
        self._metrics.prompt_tokens.add(sum(self._prompt_tokens))
        record.rows = len(self.choices)

    async def advance(self) -> Collection[Choice]:
        """Wait for the engine's updates, or the deadline, and apply them. Returns the choices that
        have changed, none once all have ended.

        Raises RefusalError if the job failed.
        """
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
        """Wait until all choices have ended. Returns each choice of the answer as one piece.

        Raises RefusalError if the job failed, or the answer has become too large.
        """
        self._scores.streamed = False
        while await self.advance():
            pass
        pieces = [choice.next_piece() for choice in self._best()]
        return [piece for piece in pieces if piece is not None]

    def encoding(self) -> AbstractAsyncContextManager[None]:
        """The whole answer is encoded within the block: large ones one after the other."""
        return self._encoding if self._scores.are_many else nullcontext()

    def usage(self) -> CompletionUsage:
        """Exact counts, so far."""
        prompt = sum(self._prompt_tokens)
        completion = sum(choice.tokens for choice in self.choices)
        # A prompt's later rows may find in the cache what its first row has computed.
        cached = sum(choice.cached for choice in self.choices[:: self._plan.width])
        details = PromptTokensDetails(cached)
        return CompletionUsage(prompt, completion, prompt + completion, details)

    def expire(self) -> None:
        """The deadline has come: the engine stops, and `advance` ends the choices still open."""
        self._expired = True
        self._stream.abort()

    def record(self) -> None:
        """Write down what has come of it, whether it is complete or not."""
        record, width = self._record, self._plan.width
        record.prompt_tokens = sum(self._prompt_tokens)
        for row, choice in enumerate(self.choices):
            record.output_tokens += choice.tokens
            if row % width == 0:
                record.cached_tokens += choice.cached
            if choice.finish_reason is not None:
                record.end_rows(choice.finish_reason)
        if self._stream.timing is not None:
            record.add_timing(self._stream.timing)
            record.decode_s = self._stream.decode_s

    def _best(self) -> list[Choice]:
        """The `n` likeliest choices of each prompt, the best first, numbered anew; all choices
        unchanged if no more were generated."""
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
        now = time.perf_counter()
        metrics = self._metrics
        if self._has_tokens:
            metrics.next_token_seconds.observe(now - self._counted_at)
        else:
            metrics.first_token_seconds.observe(now - self._counted_at)
            self._record.first_token_s = now - self._record.started
        self._counted_at, self._has_tokens = now, True
        metrics.generated_tokens.add(tokens)


@asynccontextmanager
async def generate(
    request: Request, model: Model, plan: GenerationPlan
) -> AsyncGenerator[Generation]:
    """Submit a job; entered once the engine has accepted it or its deadline, by the plan or the
    server's limit, has come, aborted on the way out, when the request's record gets its numbers.

    Raises RefusalError if the engine refuses it, or there is no room for what is held.
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
        options, client = plan.options, record.client
        stream = await model.client.generate(
            plan.params,
            texts=plan.prompts.texts,
            ids=plan.prompts.ids,
            n=plan.width,
            options=msgspec.structs.replace(
                options, cache_salt=client.salted(options.cache_salt), key=client.share
            ),
            deadline=deadline,
        )
        scores = HeldScores(plan, account)
        generation = Generation(service, record, model, plan, stream, scores, started)
        timer = None if deadline is None else loop.call_at(deadline, generation.expire)
        try:
            with stream:
                yield generation
        finally:
            if timer is not None:
                timer.cancel()
            generation.record()


def _choices(model: Model, plan: GenerationPlan, prompt_ids: list[bytes]) -> list[Choice]:
    prompts = [Prompt(model, plan, position, ids) for position, ids in enumerate(prompt_ids)]
    rows = [prompt for prompt in prompts for _ in range(plan.width)]
    return [Choice(index, prompt, model, plan) for index, prompt in enumerate(rows)]
