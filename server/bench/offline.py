"""Runs cases without HTTP, through the engine client: from the first submit to the last output."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from engine_core.refusal import RefusalError
from server.bench.cases.random_prompts import offline_prompts
from server.bench.cases.workloads import GenerationCase, OfflineCase
from server.bench.continuations import Continuations
from server.bench.results.engine_counters import counted, next_beat
from server.bench.results.measurement import BenchError, Figures, Progress
from server.bench.sequences import Sequences
from server.daemon.run import RunningEngine, running_engine
from server.models.model_setup import EngineOptions
from server.settings.settings import ServedModel
from server.tasks import first_error

_WARM_UP_SEED = 1
_WARM_UP_TOKENS = 1 << 17
_WARM_UP_OUTPUTS = 16
_SEQUENCES_A_JOB = 1024

Work = Continuations | Sequences


@asynccontextmanager
async def offline_runner(
    options: EngineOptions, prefix_caching: bool, folder: Path, _: OfflineCase
) -> AsyncGenerator["OfflineRunner"]:
    """An engine with the model in `folder`. Raises what `running_engine` raises."""
    async with running_engine(folder, options) as engine:
        yield OfflineRunner(engine, prefix_caching=prefix_caching)


class OfflineRunner:
    """Runs cases on one engine, one after another."""

    def __init__(self, engine: RunningEngine, *, prefix_caching: bool) -> None:
        """Without `prefix_caching`, no prompt of a case of shared prefixes finds what another has
        computed."""
        self._prefix_caching = prefix_caching
        self.model: ServedModel | None = engine.model
        self.engine = engine

    async def warm_up(self, case: OfflineCase) -> None:
        """The beginning of a workload of the same lengths and other contents, at most 131,072
        tokens (but one prompt at least) and 16 outputs each: compiles and loads everything
        that starting did not. Raises BenchError, RefusalError."""
        count = max(1, _WARM_UP_TOKENS // case.prompt_tokens)
        few = msgspec.structs.replace(case, count=min(case.count, count))
        prompts = offline_prompts(few, _WARM_UP_SEED)[:count]
        await _run(self._work(case, prompts, _WARM_UP_OUTPUTS))

    async def measure(self, case: OfflineCase, run: int) -> Figures:
        """Every run is the same: a generator's prefix cache is emptied before.

        Raises BenchError if a row has another number of tokens than requested, RefusalError if the
        engine refuses it or fails.
        """
        work = self._work(case, offline_prompts(case))
        self.engine.client.reset_cache()
        before = await next_beat(self.engine.client)
        figures = await timed(case.name, work)
        after = await next_beat(self.engine.client)
        figures |= counted(before, after, figures["seconds"])
        if case.prefix:
            figures["saved_share"] = figures["cached_tokens"] / figures["prompt_tokens"]
            figures["kv_blocks_peak"] = after.usage.kv_blocks_peak
            figures["kv_blocks"] = after.usage.kv_blocks_total
        return figures

    def _work(
        self, case: OfflineCase, prompts: Sequence[bytes], most_outputs: int | None = None
    ) -> Work:
        """All of `prompts`, with at most so many outputs each."""
        self.engine.client.batch = bool(case.prefix)
        if case.prefix:
            prompts = sorted(prompts)  # as whoever sends many prompts does
        salted = bool(case.prefix) and not self._prefix_caching
        if isinstance(case, GenerationCase):
            return Continuations(
                self.engine.client, case, prompts, most_outputs=most_outputs, salted=salted
            )
        return Sequences(
            self.engine.client,
            prompts,
            rows_a_job=case.members if case.prefix else _SEQUENCES_A_JOB,
            salted=salted,
        )


async def timed(name: str, work: Work) -> Figures:
    """The figures of `work`, from its first submit to its last output, with a line of progress.

    Raises BenchError or RefusalError."""
    async with Progress(name, work.unit, work.total, work.done).shown():
        cpu, started = time.process_time(), time.perf_counter()
        await _run(work)
        seconds = time.perf_counter() - started
        client_share = (time.process_time() - cpu) / seconds
    return work.figures(started, seconds) | {"seconds": seconds, "client_cpu_share": client_share}


async def _run(work: Work) -> None:
    """Submit all jobs at once, in order; the first BenchError or RefusalError ends the others and
    is raised."""
    with first_error(BenchError, RefusalError):
        async with asyncio.TaskGroup() as group:
            for job in work.jobs():
                group.create_task(job)
