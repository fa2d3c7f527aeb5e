"""An EngineCore whose clients and stages are in memory and cost next to nothing."""

import gc
import os
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec

from benchmarks.engine.stopwatch import Stopwatch
from engine_core.config import EngineConfig
from engine_core.core import EngineCore
from engine_core.executor.stage_link import StageLink
from engine_core.executor.stage_start import Capacity, WorkerLostError
from engine_core.loop.transport import ClientSocket
from engine_core.messages import ToCore
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.workflows.base import Scheduler, workflow_for
from server.demo import GENERATOR_NAME, demo_models
from server.models.model_setup import EngineOptions, set_up_model
from server.settings.settings import Limits
from workers.contract.messages import StepInput, StepMask, StepOutput

_CLIENT = b"client"


class _Clients:
    """Stands for the ROUTER socket: encodes what is sent, and forgets it.

    Its descriptor is always readable, so that the loop polls but never waits.
    """

    def __init__(self) -> None:
        self.arrivals = os.eventfd(1)
        self._queue: deque[bytes] = deque()
        self._encoder = msgspec.msgpack.Encoder()

    def put(self, message: ToCore) -> None:
        self._queue.append(self._encoder.encode([message]))

    def receive(self) -> tuple[bytes, bytes] | None:
        return (_CLIENT, self._queue.popleft()) if self._queue else None

    def send(self, client: bytes, message: msgspec.Struct) -> bool:
        self._encoder.encode(message)
        return True


class _Executor:
    """Stands for the stages: encodes each step. `poll` returns what is put into `finished`."""

    def __init__(self) -> None:
        self.results = os.eventfd(1)
        self.losses = os.eventfd(0)
        self.submitted: deque[StepInput] = deque()
        self.finished: deque[StepOutput] = deque()
        self._encoder = msgspec.msgpack.Encoder()

    def submit(self, step: StepInput) -> None:
        self._encoder.encode(step)
        self.submitted.append(step)

    def submit_mask(self, mask: StepMask) -> None:
        self._encoder.encode(mask)

    def poll(self) -> StepOutput | None:
        return self.finished.popleft() if self.finished else None

    is_ready, restarts = True, 0

    def begin_again(self) -> None:
        raise AssertionError("nothing can be lost here")

    def check(self, oldest: int | None) -> None:
        pass

    def check_losses(self) -> NoReturn:
        raise WorkerLostError("nothing can be lost here")


class InMemoryCore:
    """An EngineCore iterated by hand; `answer` plays the stages, one step between two iterations.

    The stopwatch times the parts of an iteration: prepare, schedule, build, submit, update, send.
    The rest is the loop's own: receiving and decoding, admission, polling.
    """

    PARTS = ("prepare", "schedule", "build", "submit", "update", "send")

    def __init__(
        self, config: EngineConfig, num_blocks: int, answer: Callable[[Any], StepOutput]
    ) -> None:
        self.stopwatch = Stopwatch()
        self._answer = answer
        self._clients = _Clients()
        self._executor = _Executor()
        self._clients.send = self.stopwatch.wrap("send", self._clients.send)
        self._executor.submit = self.stopwatch.wrap("submit", self._executor.submit)
        workflow = workflow_for(
            config.execution.task, has_kv_cache=config.execution.model.has_kv_cache
        )
        processor = workflow.processor(config.execution, num_blocks)
        processor.prepare = self.stopwatch.wrap("prepare", processor.prepare)

        def stopped_clock() -> float:
            """Time stands still: no step is ever worth holding back."""
            return 0.0

        scheduler = self._timed(workflow.scheduler(config.execution, num_blocks, stopped_clock))
        tokenizer = Tokenizer.load(demo_models()[GENERATOR_NAME])
        core = EngineCore(
            config,
            replace(workflow, processor=lambda *_: processor, scheduler=lambda *_: scheduler),
            Capacity(weight_bytes=0, num_blocks=num_blocks),
            cast("StageLink", self._executor),
            cast("ClientSocket", self._clients),
            workflow.preprocessor(config.execution, tokenizer),
            clock=stopped_clock,
        )
        self._iterate = self.stopwatch.wrap("iteration", core.iterate)
        # As the engine core's process does.
        gc.collect()
        gc.freeze()

    @property
    def newest_step(self) -> Any:
        """The youngest step in flight."""
        return self._executor.submitted[-1] if self._executor.submitted else None

    def put(self, message: ToCore) -> None:
        """`message` arrives in the next iteration."""
        self._clients.put(message)

    def iterate(self) -> None:
        """The oldest step in flight finishes, then the loop iterates once."""
        if self._executor.submitted:
            output = self._answer(self._executor.submitted.popleft())
            self._executor.finished.append(output)
        self._iterate()
        self.stopwatch.lap()

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (self._clients.arrivals, self._executor.results, self._executor.losses):
            os.close(descriptor)

    def _timed(self, scheduler: Scheduler) -> Scheduler:
        scheduler.schedule = self.stopwatch.wrap("schedule", scheduler.schedule)
        scheduler.build = self.stopwatch.wrap("build", scheduler.build)
        scheduler.update = self.stopwatch.wrap("update", scheduler.update)
        return scheduler


def engine_config(folder: Path, options: EngineOptions) -> EngineConfig:
    """What the daemon would start for the model in `folder`; its endpoints are of no use."""
    return set_up_model("model", folder, options, Limits(), prefix="").engine
