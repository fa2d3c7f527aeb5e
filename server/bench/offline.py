"""Runs cases without HTTP, through the engine client: from the first submit to the last output."""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np

from engine_core.client.encode_calls import ScoresCall, VectorsCall
from engine_core.client.engine_client import EngineClient
from engine_core.client.pending_jobs import EngineError, FloatArray, GenerateStream
from engine_core.messages import RowOutput, SamplingParams
from engine_core.prefix_groups.find_groups import PromptGroup, find_groups
from server.bench.cases.random_prompts import offline_prompts
from server.bench.cases.workloads import EncodeCase, GenerationCase, OfflineCase
from server.bench.results.engine_counters import counted, next_beat
from server.bench.results.measurement import BenchError, Figures, Progress, milliseconds
from server.daemon.run import RunningEngine, running_engine
from server.models.model_setup import EngineOptions
from server.settings.server_config import ServedModel
from workers.contract.token_sampling import GREEDY

_PROMPTS_A_JOB = 64
_SEQUENCES_A_JOB = 1024
_ID_BYTES = 4
_WARM_UP_SEED = 1
_WARM_UP_TOKENS = 1 << 17
_WARM_UP_OUTPUTS = 16


@asynccontextmanager
async def offline_runner(
    options: EngineOptions, find_prefixes: bool, folder: Path, _: OfflineCase
) -> AsyncGenerator["OfflineRunner"]:
    """An engine with the model in `folder`. Raises what `running_engine` raises."""
    async with running_engine(folder, options) as engine:
        yield OfflineRunner(engine, find_prefixes=find_prefixes)


class OfflineRunner:
    """Runs cases on one engine, one after another."""

    def __init__(self, engine: RunningEngine, *, find_prefixes: bool = True) -> None:
        """With `find_prefixes`, prompts of a case whose prompts share prefixes come in groups."""
        self._find_prefixes = find_prefixes
        self.engine = engine
        self.model: ServedModel | None = engine.model
        self._client = engine.client
        self._classifies = engine.model.engine.execution.task == "classify"

    async def warm_up(self, case: OfflineCase) -> None:
        """The beginning of a workload of the same lengths and other contents, at most 131,072
        tokens (but one prompt at least) and 16 outputs each: compiles and loads everything
        that starting did not. Raises BenchError, EngineError."""
        count = max(1, _WARM_UP_TOKENS // case.prompt_tokens)
        few = msgspec.structs.replace(case, count=min(case.count, count))
        prompts = offline_prompts(few, _WARM_UP_SEED)[:count]
        if isinstance(case, EncodeCase):
            await _Sequences(self._client, prompts, classifies=self._classifies).run()
        else:
            outputs = min(case.outputs, _WARM_UP_OUTPUTS)
            await self._continuations(case, prompts, outputs).run()

    async def measure(self, case: OfflineCase, run: int) -> Figures:
        """Every run is the same: a generator's prefix cache is emptied before.

        Raises BenchError if a row has another number of tokens than requested, EngineError if the
        engine refuses it or fails.
        """
        prompts = offline_prompts(case)
        self._client.reset_cache()
        before = await next_beat(self._client)
        if isinstance(case, EncodeCase):
            figures = await _timed(
                case, _Sequences(self._client, prompts, classifies=self._classifies)
            )
        else:
            figures = await _timed(case, self._continuations(case, prompts, case.outputs))
        return figures | counted(before, await next_beat(self._client), figures["seconds"])

    def _continuations(
        self, case: GenerationCase, prompts: Sequence[bytes], outputs: int
    ) -> "_Continuations":
        grouped = self._find_prefixes and case.members > 1
        return (_GroupedContinuations if grouped else _Continuations)(
            self._client, prompts, outputs
        )


async def _timed(case: OfflineCase, work: "_Sequences | _Continuations") -> Figures:
    async with Progress(case.name, work.unit, work.total, work.done).shown():
        cpu, started = time.process_time(), time.perf_counter()
        await work.run()
        seconds = time.perf_counter() - started
        client_share = (time.process_time() - cpu) / seconds
    return work.figures(seconds) | {"seconds": seconds, "client_cpu_share": client_share}


class _Continuations:
    """Prompts that are each continued by exactly `outputs` tokens, greedily."""

    unit = "tokens"

    def __init__(self, client: EngineClient, prompts: Sequence[bytes], outputs: int) -> None:
        self.total = len(prompts) * outputs
        self.client, self.prompts, self._outputs = client, prompts, outputs
        self.params = SamplingParams(sampling=GREEDY, max_tokens=outputs, ignore_eos=True)
        self._tokens = 0
        self._first = np.zeros(len(prompts))
        self._last = np.zeros(len(prompts))
        self._submitted = 0.0

    def done(self) -> int:
        """Output tokens so far."""
        return self._tokens

    async def run(self) -> None:
        """Submit all prompts, a job for every few, and wait for every row."""
        self._submitted = time.perf_counter()
        await _together(self._jobs())

    def _jobs(self) -> list[Coroutine[object, object, None]]:
        return [self._job(start) for start in range(0, len(self.prompts), _PROMPTS_A_JOB)]

    async def _job(self, start: int) -> None:
        prompts = list(self.prompts[start : start + _PROMPTS_A_JOB])
        stream = await self.client.generate(self.params, ids=prompts)
        await self.follow(stream, range(start, start + len(prompts)))

    async def follow(self, stream: GenerateStream, prompts: Sequence[int]) -> None:
        """Count what comes for a job with these prompts (their numbers), until its end."""
        counts = [0] * len(prompts)
        with stream:
            while updates := await stream.next():
                now = time.perf_counter()
                for output in updates:
                    row = output.row
                    if output.token >= 0:
                        counts[row] += 1
                        if counts[row] == 1:
                            self._first[prompts[row]] = now
                    if output.finish is not None:
                        self._check(output, counts[row])
                        self._last[prompts[row]] = now
                self._tokens += len(updates)

    def _check(self, output: RowOutput, count: int) -> None:
        if output.finish != "length" or count != self._outputs:
            raise BenchError(
                f"a row ended ({output.finish}) after {count} of {self._outputs} tokens"
            )

    def figures(self, seconds: float) -> Figures:
        """Rates; times to the first token (from the first submit, queueing included) and of each
        token after it."""
        requests = len(self.prompts)
        rates = {
            "requests": requests,
            "prompt_tokens": sum(map(len, self.prompts)) // _ID_BYTES,
            "output_tokens": self.total,
            "requests_per_s": requests / seconds,
            "output_tokens_per_s": self.total / seconds,
        }
        rates |= milliseconds("ttft", self._first - self._submitted)
        if self._outputs == 1:
            return rates
        return rates | milliseconds("tpot", (self._last - self._first) / (self._outputs - 1))


class _GroupedContinuations(_Continuations):
    """The same, in groups of the prompts that begin alike. Finding these is part of the time."""

    _grouping_s = 0.0

    def _jobs(self) -> list[Coroutine[object, object, None]]:
        started = time.perf_counter()
        groups = find_groups(self.prompts)
        self._grouping_s = time.perf_counter() - started
        return [self._group(group) for group in groups]

    async def _group(self, group: PromptGroup) -> None:
        members: list[int] = group.members.tolist()
        cut = group.prefix_len * _ID_BYTES
        prefix = self.prompts[members[0]][:cut]
        own = [(self.prompts[member][cut:], self.params) for member in members]
        streams = self.client.generate_group(prefix, own)
        pairs = zip(streams, members, strict=True)
        await _together([self.follow(stream, [member]) for stream, member in pairs])

    def figures(self, seconds: float) -> Figures:
        """Likewise, and the time to find the groups."""
        return super().figures(seconds) | {"grouping_seconds": self._grouping_s}


class _Sequences:
    """Token ids in, vectors or scores out."""

    unit = "sequences"

    def __init__(
        self, client: EngineClient, sequences: Sequence[bytes], *, classifies: bool
    ) -> None:
        self.total = len(sequences)
        self._client, self._sequences, self._classifies = client, sequences, classifies

    def done(self) -> int:
        """According to the engine's last heartbeat; they come once a second."""
        beat = self._client.beat
        left = beat.usage.waiting + beat.usage.running if beat is not None else 0
        return self.total - left if left else 0

    async def run(self) -> None:
        """Submit all sequences, a job for every thousand, and wait for every row."""
        await _together([self._encode(start) for start in range(0, self.total, _SEQUENCES_A_JOB)])

    async def _encode(self, start: int) -> None:
        ids = list(self._sequences[start : start + _SEQUENCES_A_JOB])
        numbers = await self._numbers(ids)
        if len(numbers) != len(ids) or not np.isfinite(numbers).all():
            raise BenchError(f"{len(ids)} sequences gave {len(numbers)} results")

    async def _numbers(self, ids: list[bytes]) -> FloatArray:
        """A vector of each sequence, or a classifier's logits."""
        if self._classifies:
            return (await self._client.encode(ScoresCall, ids=ids)).logits
        return (await self._client.encode(VectorsCall, ids=ids)).vectors

    def figures(self, seconds: float) -> Figures:
        """Rates."""
        tokens = sum(map(len, self._sequences)) // _ID_BYTES
        return {
            "sequences": self.total,
            "prompt_tokens": tokens,
            "sequences_per_s": self.total / seconds,
            "prompt_tokens_per_s": tokens / seconds,
        }


async def _together(jobs: Sequence[Coroutine[object, object, None]]) -> None:
    """All at once, begun in order; the first error ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except* (BenchError, EngineError) as errors:
        raise errors.exceptions[0] from None
