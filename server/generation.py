"""A generate job in the house: admitted, accepted by the engine, its choices as they grow."""

import asyncio
import itertools
import time
from array import array
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import asynccontextmanager

import msgspec

from engine_core.client_jobs import GenerateStream
from engine_core.messages import RowOutput, SamplingParams
from server.choice import Choice, Prompt
from server.logprobs import LogprobsBuilder
from server.prompts import Items
from server.registry import Model
from server.schemas.completions import CompletionUsage
from server.service import Service

# Behind a client that reads slowly news pile up: others have their turn after so many.
_AT_ONCE = 512


class GenerationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of a generator. `logprobs` None is none at all."""

    prompts: Items
    n: int
    params: SamplingParams
    stops: tuple[str, ...]
    logprobs: int | None
    echo: bool
    cache_salt: str = ""

    @property
    def rows(self) -> int:
        """Sequences: n for each prompt."""
        return len(self.prompts) * self.n

    def tokens(self, prompt_tokens: int, max_model_len: int) -> int:
        """What the job may come to hold: its prompts, and every row run to its end."""
        longest = min(self.params.max_tokens or max_model_len, max_model_len)
        return prompt_tokens + self.rows * longest


class Generation:
    """The choices of one job, prompt by prompt, and what they have cost so far."""

    def __init__(
        self,
        service: Service,
        model: Model,
        plan: GenerationPlan,
        stream: GenerateStream,
        started: float,
    ) -> None:
        """`started` is when the request came, by time.perf_counter()."""
        metrics = service.metrics
        self._first_token_seconds = metrics.first_token_seconds.labels(model.name)
        self._next_token_seconds = metrics.next_token_seconds.labels(model.name)
        self._generated_tokens = metrics.generated_tokens.labels(model.name)
        self._told_at = started
        self._told_before = False
        self._stream = stream
        self._untold: Iterator[RowOutput] = iter(())
        self.choices = _choices(model, plan, stream.prompt_ids)
        metrics.prompt_tokens.labels(model.name).inc(sum(stream.prompt_tokens))

    async def news(self) -> Collection[Choice]:
        """Wait for the engine's news; the choices that they touched, none once all have ended.

        Raises EngineError if the job failed.
        """
        outputs = list(itertools.islice(self._untold, _AT_ONCE))
        if not outputs:
            self._untold = iter(await self._stream.next())
            outputs = list(itertools.islice(self._untold, _AT_ONCE))
        if len(outputs) == _AT_ONCE:
            await asyncio.sleep(0)
        touched: dict[int, Choice] = {}
        tokens = 0
        for output in outputs:
            choice = touched[output.row] = self.choices[output.row]
            tokens -= choice.tokens
            choice.take(output)
            tokens += choice.tokens
            if choice.finish_reason is not None:
                self._stream.end_row(output.row)
        if tokens:
            self._count(tokens)
        return touched.values()

    def usage(self) -> CompletionUsage:
        """Exact counts, so far."""
        prompt = sum(self._stream.prompt_tokens)
        completion = sum(choice.tokens for choice in self.choices)
        return CompletionUsage(prompt, completion, prompt + completion)

    def _count(self, tokens: int) -> None:
        now = time.perf_counter()
        histogram = self._next_token_seconds if self._told_before else self._first_token_seconds
        histogram.observe(now - self._told_at)
        self._told_at, self._told_before = now, True
        self._generated_tokens.inc(tokens)


@asynccontextmanager
async def generation(
    service: Service, model: Model, plan: GenerationPlan
) -> AsyncGenerator[Generation]:
    """Admit a job and submit it; entered once the engine has accepted it, aborted on the way out.

    Raises APIError or EngineError where the house or the engine refuses it.
    """
    started = time.perf_counter()
    limit = model.max_model_len
    tokens = plan.tokens(plan.prompts.size, limit)
    with service.admission.admit(rows=plan.rows, tokens=tokens) as ticket:
        stream = await model.client.generate(
            plan.params,
            texts=plan.prompts.texts,
            ids=plan.prompts.ids,
            n=plan.n,
            cache_salt=plan.cache_salt,
        )
        with stream:
            ticket.correct(plan.tokens(sum(stream.prompt_tokens), limit))
            yield Generation(service, model, plan, stream, started)


def _choices(model: Model, plan: GenerationPlan, prompt_ids: list[bytes]) -> list[Choice]:
    choices: list[Choice] = []
    for position, ids in enumerate(prompt_ids):
        prompt = Prompt(model.tokenizer, ids, _echo(model, plan, position, ids))
        for _ in range(plan.n):
            logprobs = (
                LogprobsBuilder(model.token_text, plan.logprobs)
                if plan.logprobs is not None
                else None
            )
            choices.append(Choice(len(choices), prompt, plan.stops, logprobs))
    return choices


def _echo(model: Model, plan: GenerationPlan, position: int, ids: bytes) -> str | None:
    """A prompt's text as it was sent, or as its ids read."""
    if not plan.echo:
        return None
    if plan.prompts.texts:
        return plan.prompts.texts[position]
    return model.tokenizer.decode(array("i", ids).tolist())
