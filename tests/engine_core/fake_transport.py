"""In-memory ends for an EngineCore: clients that script messages, an executor without workers."""

import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn, cast

import msgspec
import numpy as np

from engine_core.core import EngineCore
from engine_core.executor.stage_link import StageLink
from engine_core.executor.stage_start import Capacity, WorkerLostError
from engine_core.loop.admission import InFlight
from engine_core.loop.transport import ClientSocket
from engine_core.messages import Beat, EngineInfo, FromCore, Outputs, ToCore, TracedSteps
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.workflows.base import workflow_for
from tests.engine_core.configs import engine_config
from tests.engine_core.simulated_model import SimulatedModel, SimulatedPipeline
from workers.contract.checkpoint.architectures import family_of
from workers.contract.messages import (
    EmbedOutput,
    EncodeStep,
    StageReport,
    StepInput,
    StepMask,
    StepOutput,
    StepTimes,
)
from workers.contract.model_config import AttentionKind

_ITERATION_SECONDS = 1e-4


def open_event(owner: object, value: int) -> int:
    """A descriptor that is readable if `value` is not 0; it is closed when its owner goes."""
    descriptor = os.eventfd(value)
    weakref.finalize(owner, os.close, descriptor)
    return descriptor


class FakeClients:
    """Stands for the ROUTER socket. Its descriptor is always readable, so the loop never waits."""

    def __init__(self) -> None:
        self.arrivals = open_event(self, 1)
        self.sent: dict[bytes, list[FromCore | TracedSteps]] = {}
        self.gone: set[bytes] = set()
        self._arrivals: deque[tuple[bytes, bytes]] = deque()
        self._decoder = msgspec.msgpack.Decoder(FromCore | TracedSteps)

    def put(self, client: bytes, message: ToCore) -> None:
        self._arrivals.append((client, msgspec.msgpack.encode([message])))

    def receive(self) -> tuple[bytes, bytes] | None:
        return self._arrivals.popleft() if self._arrivals else None

    def send(self, client: bytes, message: msgspec.Struct) -> bool:
        if client in self.gone:
            return False
        frame = msgspec.msgpack.encode(message)
        self.sent.setdefault(client, []).append(self._decoder.decode(frame))
        return True

    def outputs(self, client: bytes) -> list[Outputs]:
        return [message for message in self.sent.get(client, []) if isinstance(message, Outputs)]

    def beats(self, client: bytes) -> list[Beat | EngineInfo]:
        return [m for m in self.sent.get(client, []) if isinstance(m, Beat | EngineInfo)]


class FakeExecutor:
    """Finishes one step each time it is allowed to; the earlier stages' reports follow its result.

    Stage s takes 1000 + s µs for each step. After a loss the next stages are ready once `is_ready`
    is set.
    """

    def __init__(self, runner, num_stages: int = 1, new_runner=None) -> None:
        self.results = open_event(self, 1)
        self.losses = open_event(self, 0)
        self.allowed = 1_000_000
        self.lost = False
        self.is_ready, self.restarts = True, 0
        self._runner, self._new_runner = runner, new_runner
        self._last_stage = num_stages - 1
        self._reports: deque[StageReport] = deque()

    def submit(self, step: StepInput) -> None:
        if self.lost:
            raise WorkerLostError("stage 0: gone")
        self._runner.submit(step)

    def submit_mask(self, mask: StepMask) -> None:
        if self.lost:
            raise WorkerLostError("stage 0: gone")
        self._runner.submit_mask(mask)

    def begin_again(self) -> None:
        assert self._new_runner is not None
        self.lost = self.is_ready = False
        self.restarts += 1
        self._runner = self._new_runner()
        self._reports.clear()

    def check(self, oldest: int | None) -> None:
        pass

    def check_losses(self) -> NoReturn:
        raise WorkerLostError("stage 0: gone")

    def poll(self) -> StepOutput | StageReport | None:
        if self.lost:
            raise WorkerLostError("stage 0: gone")
        if self._reports:
            return self._reports.popleft()
        if not len(self._runner) or not self.allowed:
            return None
        self.allowed -= 1
        result = self._runner.next_result()
        for stage in range(self._last_stage):
            self._reports.append(StageReport(stage, result.step, StepTimes(busy_us=1000 + stage)))
        times = StepTimes(busy_us=1000 + self._last_stage)
        return msgspec.structs.replace(result, times=times)


class SimulatedEncoder:
    """Pools each row to (its length, the sum of its ids behind a prompt that is not pooled); a row
    that holds id 13 to NaN."""

    def __init__(self) -> None:
        self._queue: deque[EncodeStep] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, step: EncodeStep) -> None:
        self._queue.append(step)

    def next_result(self) -> EmbedOutput:
        return self.run(self._queue.popleft())

    def run(self, step: EncodeStep) -> EmbedOutput:
        lens = np.frombuffer(step.query_lens, np.int32)
        rows = np.split(np.frombuffer(step.tokens, np.int32), np.cumsum(lens)[:-1])
        unpooled = np.frombuffer(step.unpooled_lens or bytes(4 * len(lens)), np.int32)
        pooled = [
            (np.nan if 13 in row else len(row), row[first:].sum())
            for row, first in zip(rows, unpooled, strict=True)
        ]
        return EmbedOutput(step.step, vectors=np.array(pooled, np.float32).tobytes())


class SimulatedEmbedder(SimulatedEncoder):
    """A decoder that embeds each row as the length of its text."""

    def run(self, step: Any) -> EmbedOutput:
        lens, cached = (np.frombuffer(part, np.int32) for part in (step.query_lens, step.starts))
        ends = (lens + cached)[np.frombuffer(step.sample, np.bool_)]
        return EmbedOutput(step.step, vectors=ends.astype(np.float32).tobytes())


class Engine:
    """An EngineCore over fakes, iterated by hand. Unless it is given a clock, an iteration takes
    0.1 ms of simulated time, so that its work does not depend on the machine."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        architecture: str,
        num_blocks: int,
        executor=None,
        clock: Callable[[], float] | None = None,
        **changes,
    ) -> None:
        config = engine_config(**changes)
        kind = AttentionKind(causal=num_blocks > 0, scale=1.0)
        model = msgspec.structs.replace(
            config.execution.model, architecture=architecture, attention=(kind,)
        )
        execution = msgspec.structs.replace(config.execution, model=model)
        self.config = msgspec.structs.replace(config, execution=execution)
        self.clients = FakeClients()

        def new_runner() -> SimulatedEncoder | SimulatedPipeline:
            if not num_blocks:
                return SimulatedEncoder()
            if task == "embed":
                return SimulatedEmbedder()
            sizes = num_blocks, execution.block_size, execution.max_running
            return SimulatedPipeline(SimulatedModel(*sizes))

        stages, task = execution.num_stages, changes.get("task", family_of(architecture).task)
        self.told: list[str] = []
        self.executor = executor or FakeExecutor(new_runner(), stages, new_runner)
        workflow = workflow_for(task, has_kv_cache=model.has_kv_cache)
        self._now = 0.0
        self.core = EngineCore(
            self.config,
            workflow,
            Capacity(weight_bytes=0, num_blocks=num_blocks),
            cast("StageLink", self.executor),
            cast("ClientSocket", self.clients),
            workflow.preprocessor(execution, tokenizer),
            clock or (lambda: self._now),
            lambda line: self.told.extend(filter(None, [line])),
        )

    def iterate(self) -> None:
        self.core.run_once()
        self._now += _ITERATION_SECONDS

    def run(self, iterations: int) -> None:
        for _ in range(iterations):
            self.iterate()

    def serve(self, *jobs: ToCore, client: bytes = b"client-a") -> None:
        """Iterate until these jobs, and all others, are over."""
        for job in jobs:
            self.clients.put(client, job)
        self.iterate_until(self.is_idle)

    def is_idle(self) -> bool:
        return not (self.clients._arrivals or self.core._jobs or self.core._in_flight)

    def assert_idle(self) -> None:
        """No job has left anything behind."""
        usage = self.core._scheduler.usage()
        assert (usage.running, usage.waiting, usage.kv_blocks_used) == (0, 0, 0)
        assert not self.core._in_flight
        assert self.core._budget.held == InFlight()

    def iterate_until(self, done, iterations: int = 20_000) -> None:
        for _ in range(iterations):
            if done():
                return
            self.iterate()
        raise AssertionError("the loop came to no end")
