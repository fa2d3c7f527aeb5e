"""Runs cases without HTTP, through the engine client: from the first submit to the last output."""

import time
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

import msgspec
import numpy as np

from engine_core.client.engines import Engines
from engine_core.messages import JobOptions, ResetCache, SamplingParams
from engine_core.refusal import RefusalError
from server.batches.progress import progress_shown
from server.bench.measurement import BenchError, Figures, counted, milliseconds, next_beat, rates
from server.bench.workloads import (
    DecisionCase,
    GenerationCase,
    OfflineCase,
    offline_prompts,
    output_lengths,
)
from server.daemon.run import RunningEngine, running_engine
from server.event_loop import all_of
from server.models.model_setup import EngineOptions
from server.settings.settings import ServedModel
from workers.contract.checkpoint.checkpoint_config import read_model_config

_WARM_UP_SEED = 1
_WARM_UP_TOKENS = 1 << 17
_WARM_UP_OUTPUTS = 16
_PROMPTS_A_JOB, _SEQUENCES_A_JOB = 64, 1024
_ID_BYTES = 4
_STOP_TOKEN = 1
_FAILURES = (BenchError, RefusalError)
_CERTAIN = 1e4  # a bias that leaves no other token a chance


def sampling_params(case: GenerationCase, outputs: int) -> SamplingParams:
    """The parameters that continue a prompt by exactly `outputs` tokens. With `case.most_outputs` a
    stop token ends the row, certain once it is allowed: the engine does not know the length."""
    if not case.most_outputs:
        return SamplingParams(sampling=case.sampling, max_tokens=outputs, ignore_eos=True)
    return SamplingParams(
        sampling=case.sampling,
        seed=0,
        max_tokens=case.most_outputs,
        min_tokens=outputs - 1,
        stop_token_ids=frozenset({_STOP_TOKEN}),
        logit_bias={_STOP_TOKEN: _CERTAIN},
    )


class Continuations:
    """The prompts of a case (int32 ids each) in order, continued in jobs of neighbours."""

    unit = "tokens"

    def __init__(
        self,
        engines: Engines,
        case: GenerationCase,
        prompts: Sequence[bytes],
        *,
        most_outputs: int | None = None,
        salted: bool = False,
    ) -> None:
        """Take at most `most_outputs` for each prompt, if that is given. If `salted`, each is a job
        with a cache salt of its own: none finds what another has computed."""
        self._engines, self._case, self._prompts = engines, case, prompts
        self._most_prompts, self._salted = 1 if salted else _PROMPTS_A_JOB, salted
        lengths = output_lengths(case, len(prompts))
        self._outputs = np.minimum(lengths, most_outputs or max(lengths))
        self.total = int(self._outputs.sum())
        self._tokens = 0
        self._first = np.zeros(len(prompts))
        self._last = np.zeros(len(prompts))

    def done(self) -> int:
        return self._tokens

    def jobs(self) -> Iterator[Coroutine[object, object, None]]:
        """One for every few neighbouring prompts with the same number of outputs."""
        for outputs, alike in groupby(range(len(self._prompts)), self._outputs.item):
            numbers = list(alike)
            for start in range(0, len(numbers), self._most_prompts):
                yield self._job(numbers[start : start + self._most_prompts], outputs)

    async def _job(self, numbers: Sequence[int], outputs: int) -> None:
        stream = await self._engines.choose().generate(
            sampling_params(self._case, outputs),
            ids=[self._prompts[number] for number in numbers],
            options=JobOptions(cache_salt=f"{numbers[0]}" if self._salted else ""),
        )
        counts = [0] * len(numbers)
        expected = "stop" if self._case.most_outputs else "length"
        with stream:
            while updates := await stream.next():
                now = time.perf_counter()
                for output in updates:
                    number = numbers[output.row]
                    if output.token >= 0:
                        counts[output.row] += 1
                        if counts[output.row] == 1:
                            self._first[number] = now
                    if output.finish is not None:
                        self._last[number] = now
                        if (output.finish, counts[output.row]) != (expected, outputs):
                            raise BenchError(
                                f"a row ended ({output.finish}) after {counts[output.row]} of "
                                f"{outputs} tokens"
                            )
                self._tokens += len(updates)

    def figures(self, started: float, seconds: float) -> Figures:
        counts = {
            "requests": len(self._prompts),
            "prompt_tokens": sum(map(len, self._prompts)) // _ID_BYTES,
            "output_tokens": self.total,
        }
        several = self._outputs > 1
        decoding = (self._last - self._first)[several] / (self._outputs[several] - 1)
        first = milliseconds("ttft", self._first - started)
        return rates(counts, seconds) | first | milliseconds("tpot", decoding)


class Sequences:
    """Sequences of one case, in jobs of many."""

    unit = "sequences"

    def __init__(
        self,
        engines: Engines,
        sequences: Sequence[bytes],
        *,
        rows_a_job: int,
        salted: bool,
    ) -> None:
        self._rows_a_job, self._salted = 1 if salted else rows_a_job, salted
        self.total = len(sequences)
        self._engines, self._sequences = engines, sequences

    def done(self) -> int:
        """Sequences that have ended by the engines' last heartbeats."""
        usages = [engine.beat.usage for engine in self._engines if engine.beat is not None]
        left = sum(usage.waiting + usage.running for usage in usages)
        return self.total - left if left else 0

    def jobs(self) -> Iterator[Coroutine[object, object, None]]:
        return map(self._encode, range(0, self.total, self._rows_a_job))

    async def _encode(self, start: int) -> None:
        ids = list(self._sequences[start : start + self._rows_a_job])
        options = JobOptions(cache_salt=f"{start}" if self._salted else "")
        numbers = (await self._engines.choose().encode(ids=ids, options=options)).values
        if len(numbers) != len(ids) or not np.isfinite(numbers).all():
            raise BenchError(f"{len(ids)} sequences gave {len(numbers)} results")

    def figures(self, started: float, seconds: float) -> Figures:
        tokens = sum(map(len, self._sequences)) // _ID_BYTES
        return rates({"sequences": self.total, "prompt_tokens": tokens}, seconds)


class Questions:
    """The questions of a case, in a job for each input. Behind each its labels are read."""

    unit = "questions"

    def __init__(
        self, engines: Engines, case: DecisionCase, prompts: Sequence[bytes], *, salted: bool
    ) -> None:
        """`prompts` are inputs with a question each, those of one input together. If `salted`, each
        is a job of its own."""
        self._engines, self._case, self._prompts = engines, case, prompts
        self._rows_a_job, self._salted = 1 if salted else case.members, salted
        self.total, self._done = len(prompts), 0

    def done(self) -> int:
        return self._done

    def jobs(self) -> Iterator[Coroutine[object, object, None]]:
        return map(self._read, range(0, self.total, self._rows_a_job))

    async def _read(self, start: int) -> None:
        case, prompts = self._case, self._prompts[start : start + self._rows_a_job]
        end = case.prefix * _ID_BYTES
        found = await self._engines.choose().read(
            pieces=[
                _numbered_words(ids) for ids in (prompts[0][:end], *(p[end:] for p in prompts))
            ],
            prompts=[(0, number) for number in range(1, len(prompts) + 1)],
            tokens=[np.arange(case.options, dtype=np.int32).tobytes()] * len(prompts),
            options=JobOptions(cache_salt=f"{start}" if self._salted else ""),
        )
        self._done += len(found.values)
        if found.piece_tokens != (sizes := [case.prefix, *[case.own] * len(prompts)]):
            raise BenchError(f"texts have {found.piece_tokens} tokens in place of {sizes}")
        if any(len(row) != case.options or not np.isfinite(row).all() for row in found.values):
            raise BenchError(f"a question has not {case.options} log-probabilities")

    def figures(self, started: float, seconds: float) -> Figures:
        tokens = sum(map(len, self._prompts)) // _ID_BYTES
        return rates({"questions": self.total, "prompt_tokens": tokens}, seconds)


def _numbered_words(ids: bytes) -> str:
    """The text of these ids for a model with random weights and no tokenizer."""
    return " ".join(f"<{number}>" for number in np.frombuffer(ids, np.int32))


Work = Continuations | Sequences | Questions


@asynccontextmanager
async def offline_runner(
    options: EngineOptions, prefix_caching: bool, folder: Path, case: OfflineCase
) -> AsyncGenerator["OfflineRunner"]:
    """An engine with the model in `folder`. Raises BenchError if its vocabulary is too small, and
    what `running_engine` raises."""
    if (size := read_model_config(folder).vocab_size) <= case.largest_id:
        ids = f"prompts have token ids up to {case.largest_id:,}"
        raise BenchError(f"{folder.name}: its vocabulary has {size:,} entries, and {ids}")
    begun = time.perf_counter()
    async with running_engine(folder, options) as engine:
        start_seconds = time.perf_counter() - begun
        yield OfflineRunner(engine, start_seconds, prefix_caching=prefix_caching)


class OfflineRunner:
    """Runs cases on one engine, which was ready after `start_seconds`, one after another."""

    def __init__(
        self, engine: RunningEngine, start_seconds: float, *, prefix_caching: bool
    ) -> None:
        self._start_seconds, self._prefix_caching = start_seconds, prefix_caching
        self.model: ServedModel | None = engine.model
        self.engine = engine

    async def warm_up(self, case: OfflineCase) -> None:
        """Compile and load what starting did not, by up to 131,072 tokens of other prompts of these
        lengths, and 16 outputs each. Raises BenchError, RefusalError."""
        count = max(1, _WARM_UP_TOKENS // case.prompt_tokens)
        few = msgspec.structs.replace(case, count=min(case.count, count))
        prompts = offline_prompts(few, _WARM_UP_SEED)[:count]
        await all_of(self._work(case, prompts, _WARM_UP_OUTPUTS).jobs(), *_FAILURES)

    async def measure(self, case: OfflineCase, run: int) -> Figures:
        """Run the case once, always in the same way. Raises BenchError if a row has another number
        of tokens than requested, RefusalError if the engine refuses it or fails."""
        work = self._work(case, offline_prompts(case))
        engines = self.engine.engines
        for engine in engines:
            engine.send(ResetCache())
        before = await next_beat(engines)
        figures = await timed(case.name, work)
        after = await next_beat(engines)
        figures |= counted(before, after, figures["seconds"])
        figures["start_seconds"] = self._start_seconds
        if isinstance(case, DecisionCase):
            figures["computed_ratio"] = figures["computed_tokens"] / case.needed_tokens
        if case.prefix:
            figures["saved_share"] = figures["cached_tokens"] / figures["prompt_tokens"]
            figures["kv_blocks_peak"] = after.usage.kv_blocks_peak
            figures["kv_blocks"] = after.usage.kv_blocks_total
        return figures

    def _work(
        self, case: OfflineCase, prompts: Sequence[bytes], most_outputs: int | None = None
    ) -> Work:
        is_decision = isinstance(case, DecisionCase)
        engines = self.engine.engines
        for engine in engines:
            engine.batch = bool(case.prefix) and not is_decision
        if case.prefix:
            prompts = sorted(prompts)  # as whoever sends many prompts does
        salted = bool(case.prefix) and not self._prefix_caching
        if is_decision:
            return Questions(engines, case, prompts, salted=salted)
        if isinstance(case, GenerationCase):
            return Continuations(engines, case, prompts, most_outputs=most_outputs, salted=salted)
        return Sequences(
            engines,
            prompts,
            rows_a_job=case.members if case.prefix else _SEQUENCES_A_JOB,
            salted=salted,
        )


async def timed(name: str, work: Work) -> Figures:
    """The figures of `work`, from its first submit to its last output. Raises BenchError or
    RefusalError."""
    async with progress_shown(name, work.unit, work.total, work.done):
        cpu, started = time.process_time(), time.perf_counter()
        await all_of(work.jobs(), *_FAILURES)
        seconds = time.perf_counter() - started
        client_share = (time.process_time() - cpu) / seconds
    return work.figures(started, seconds) | {"seconds": seconds, "client_cpu_share": client_share}
