"""The engine core's end of the ZMQ socket to all stages.

The workers' end is `workers/links/engine_link.py`.
"""

import logging
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from engine_core.config import EngineConfig
from engine_core.executor.partition import stage_shares
from engine_core.executor.rendezvous import RendezvousStore
from engine_core.loop.transport import Pollable, is_readable, open_router
from workers.contract.config import ExecutionConfig
from workers.contract.curve import Refusals
from workers.contract.messages import (
    AllocateKV,
    FromWorker,
    StageReport,
    StepInput,
    StepMask,
    StepOutput,
    StoreCall,
    ToWorker,
    WorkerBeat,
    WorkerConnected,
    WorkerFailed,
    WorkerLoaded,
    WorkerReady,
)
from workers.contract.process import BEAT_SECONDS, SILENT_BEATS

CHECK_SECONDS = 0.25
"""Seconds between two calls of `StageLink.check`: how late a stage that stands still is noticed."""

CHECKS_A_BEAT = round(BEAT_SECONDS / CHECK_SECONDS)


class WorkerLostError(Exception):
    """A stage has failed or its process is gone, so nothing more can be computed."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """All stages together: weights in bytes, blocks of KV cache (0 for an encoder)."""

    weight_bytes: int
    num_blocks: int


log = logging.getLogger(__name__)


StartMessage = WorkerConnected | WorkerLoaded | WorkerReady
StageT = TypeVar("StageT", WorkerConnected, WorkerLoaded, WorkerReady)

_CAUSE_SECONDS = 0.2
"""From the first sign of a loss until it is answered, if its cause remains unknown."""

_SILENT_TICKS = SILENT_BEATS * CHECKS_A_BEAT


class StageLink:
    """Sends every step to every stage, and takes what they report. Results come from the last one,
    in submit order. An earlier stage's report may come before the step's result, or after it.

    `results` is readable when `poll` has something, `losses` when a stage may be gone. Every method
    raises WorkerLostError once a stage is lost or stands still.

    Only what comes from a link of a stage is heard. ZMQ gives a name to the first who asks for it,
    and hears nothing of others under that name.
    """

    def __init__(self, config: EngineConfig, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        execution = self._execution = config.execution
        self._stages = range(execution.num_stages)
        self._watch = StageWatch(execution, config.stall_timeout)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromWorker)
        self._store = RendezvousStore()
        self.results = open_router(context)
        keys = execution.cluster_keys
        self._admission = None if keys is None else keys.admission(context)
        if keys is not None:
            keys.secure_listener(self.results, execution.worker_endpoint)
        self._losses = Losses(self.results, execution)
        self.losses: Pollable = self._losses.monitor
        self._poller = zmq.Poller()
        self._poller.register(self.results, zmq.POLLIN)
        self._poller.register(self.losses, zmq.POLLIN)
        self.results.bind(execution.worker_endpoint)

    def start(self) -> Capacity:
        """Give each stage its layers, size the KV cache by what they load, and wait for all."""
        connected = [self._await(WorkerConnected) for _ in self._stages]
        shares = stage_shares(self._execution, connected)
        for stage, share in zip(self._stages, shares, strict=True):
            self._send(share, [stage])
        loaded = [self._await(WorkerLoaded) for _ in self._stages]
        weight_bytes = sum(stage.weight_bytes for stage in loaded)
        log.info("weights: %s bytes in %.1f s", f"{weight_bytes:,}", max(s.seconds for s in loaded))
        num_blocks = _kv_blocks(self._execution, loaded)
        self._send(AllocateKV(num_blocks), self._stages)
        for _ in self._stages:
            self._await(WorkerReady)
        return Capacity(weight_bytes, num_blocks)

    def submit(self, step: StepInput) -> None:
        """Hand one step to all stages, without blocking."""
        self._send(step, self._stages)

    def submit_mask(self, mask: StepMask) -> None:
        """Hand the mask of a submitted step to the last stage, without blocking."""
        self._send(mask, self._stages[-1:])

    def poll(self) -> StepOutput | StageReport | None:
        """The next report that has come, or None."""
        message = self._receive()
        assert not isinstance(message, StartMessage), f"unexpected {message!r}"
        return message

    def check(self, oldest: int | None) -> None:
        """See that no stage stands still, every CHECK_SECONDS. `oldest` is the oldest open step."""
        self._watch.tick(oldest)

    def check_losses(self) -> None:
        """See whether a stage is gone, whenever `losses` is readable."""
        self._losses.read()
        if self._losses.noticed:
            self._raise_lost()

    def _raise_lost(self) -> NoReturn:
        """Raise WorkerLostError with the reason of the loss that was noticed."""
        until = time.monotonic() + _CAUSE_SECONDS
        while True:
            # In this order: what a stage has said before it went is there once it is known to be
            # gone, and says more.
            self._losses.read()
            while self._next() is not None:
                pass
            left = until - time.monotonic()
            if cause := self._losses.cause(guessed=left <= 0):
                raise WorkerLostError(cause)
            self._poller.poll(math.ceil(left * 1e3))

    def close(self) -> None:
        """Close the sockets. The supervisor ends the processes."""
        self._losses.close()
        self.results.close(0)
        if self._admission is not None:
            self._admission.stop()

    def _await(self, kind: type[StageT]) -> StageT:
        """The next message of a starting stage, which must be of this kind."""
        while (message := self._receive()) is None:
            if self.losses in dict(self._poller.poll()):
                self.check_losses()
        assert isinstance(message, kind), f"unexpected {message!r}"
        return message

    def _send(self, message: ToWorker, stages: Sequence[int]) -> None:
        frame = self._encoder.encode(message)
        for stage in stages:
            try:
                self.results.send_multipart([b"stage-%d" % stage, frame], zmq.NOBLOCK, copy=True)
            except zmq.ZMQError:  # its connection is closed
                self._raise_lost()

    def _receive(self) -> StepOutput | StageReport | StartMessage | None:
        """The next message that has come and is no heartbeat, or None."""
        while (message := self._next()) is not None:
            if self._losses.noticed:
                self._raise_lost()
            assert not isinstance(message, WorkerFailed | StoreCall), "dealt with before"
            if not isinstance(message, WorkerBeat):
                return message
            self._watch.heard(message)
        return None

    def _next(self) -> FromWorker | None:
        """The next message that has come. Calls of the store are answered."""
        while is_readable(self.results):
            name, *frames = self.results.recv_multipart(copy=False)
            # A frame may have megabytes, if it holds vectors.
            message = self._decoded(name.bytes, frames)
            if isinstance(message, StoreCall):
                answer = self._encoder.encode(self._store.answer(message))
                with suppress(zmq.ZMQError):  # its connection is closed
                    self.results.send_multipart([name.bytes, answer], zmq.NOBLOCK)
            elif message is not None:
                self._note(message, frames[0])
                return message
        return None

    def _decoded(self, name: bytes, frames: Sequence[zmq.Frame]) -> FromWorker | None:
        """The message, or None for what no stage sends."""
        stage = name.rpartition(b"-")[2]
        if len(frames) == 1 and stage.isdigit() and int(stage) in self._stages:
            with suppress(msgspec.MsgspecError):
                return self._decoder.decode(frames[0].buffer)
        return None

    def _note(self, message: FromWorker, frame: zmq.Frame) -> None:
        if isinstance(message, WorkerBeat):
            self._losses.connected(message.stage, frame.get(zmq.SRCFD))
        elif isinstance(message, WorkerFailed):
            self._losses.failed(message)


def _kv_blocks(execution: ExecutionConfig, loaded: Sequence[WorkerLoaded]) -> int:
    """Blocks of KV cache that the tightest stage holds, up to what could ever be used.

    An encoder has none. A stage's budget is configured, or measured (`workers/stage/kv_budget.py`).
    Raises WorkerLostError where no block fits.
    """
    stages = [stage for stage in loaded if stage.kv_block_bytes]
    if not stages:
        return 0
    longest = execution.max_model_len
    layout = execution.cache_layout
    tightest = min(stages, key=lambda stage: stage.kv_budget_bytes // stage.kv_block_bytes)
    blocks = tightest.kv_budget_bytes // tightest.kv_block_bytes
    if blocks < 1:
        raise WorkerLostError(
            f"the KV cache of {tightest.kv_budget_bytes:,} bytes does not hold one block of "
            f"{tightest.kv_block_bytes:,}: raise {execution.setting('kv_cache_memory')}"
        )
    if (held := layout.longest(blocks)) < longest:
        log.warning(
            "the KV cache of %s bytes holds a sequence of %s tokens, fewer than the model's "
            "context length of %s: longer requests are refused (%s: %s bytes hold one)",
            f"{tightest.kv_budget_bytes:,}",
            f"{held:,}",
            f"{longest:,}",
            execution.setting("kv_cache_memory"),
            f"{layout.blocks_alone(layout.max_blocks) * tightest.kv_block_bytes:,}",
        )
    return min(blocks, layout.usable(execution.max_running))


class Losses:
    """The signs that stages are lost, and which of them is the cause.

    A process that is killed says nothing. The kernel closes its connection, which ZMQ reports by
    its file descriptor. A neighbour may find its own link to that stage broken before.
    """

    def __init__(self, socket: zmq.Socket[bytes], execution: ExecutionConfig) -> None:
        """Watch the connections of `socket`, which is not bound yet."""
        self.monitor = socket.get_monitor_socket(Refusals.EVENTS)
        self._socket = socket
        self._model = execution.name
        self._refusals = Refusals(execution.worker_endpoint)
        self._stages: dict[int, int] = {}  # file descriptor -> stage
        self._gone: list[int] = []
        self._failures: dict[int, WorkerFailed] = {}

    @property
    def noticed(self) -> bool:
        return bool(self._gone or self._failures)

    def connected(self, stage: int, descriptor: int) -> None:
        if descriptor not in self._stages:
            self.read()  # the descriptor may have been that of a connection that was refused
            self._stages[descriptor] = stage

    def failed(self, failure: WorkerFailed) -> None:
        self._failures.setdefault(failure.stage, failure)

    def read(self) -> None:
        """Note the stages' connections that have been closed, and count those that were refused."""
        while is_readable(self.monitor):
            event = recv_monitor_message(self.monitor)
            self._refusals.note(event["event"])
            if event["event"] == zmq.EVENT_DISCONNECTED and event["value"] in self._stages:
                self._gone.append(self._stages[event["value"]])

    def cause(self, *, guessed: bool) -> str | None:
        """Why the model is lost. None, unless it is `guessed`, while all signs may be consequences
        of another loss."""
        failures = sorted(self._failures.values(), key=lambda failure: failure.neighbour_lost)
        silent = [stage for stage in self._gone if stage not in self._failures]
        if silent and all(failure.neighbour_lost for failure in failures):
            return f"worker {silent[0]} of {self._model} has gone"
        if failures and (guessed or not failures[0].neighbour_lost):
            return f"stage {failures[0].stage}: {failures[0].message}"
        return f"a worker of {self._model} has gone" if guessed else None

    def close(self) -> None:
        self._socket.disable_monitor()
        self.monitor.close(0)


class StageWatch:
    """Finds a stage that stands still, by counting calls of `tick`.

    A clock would take time in which this process itself was stopped for a stage's silence.
    """

    def __init__(self, execution: ExecutionConfig, stall_timeout: float) -> None:
        """A step may take `stall_timeout` seconds. With 0 nothing is watched."""
        self._execution, self._stall_timeout = execution, stall_timeout
        self._stall_ticks = math.ceil(stall_timeout / CHECK_SECONDS)
        self._silent = [0] * execution.num_stages  # ticks since the last heartbeat
        self._last_steps = [-1] * execution.num_stages  # the last step each has done its share of
        self._oldest: int | None = None
        self._age = 0  # ticks for which `_oldest` has been the same

    def heard(self, beat: WorkerBeat) -> None:
        self._silent[beat.stage] = 0
        self._last_steps[beat.stage] = beat.last_finished_step

    def tick(self, oldest: int | None) -> None:
        """Raise WorkerLostError for a stage that stands still.

        Silence means nothing while a step is in flight: a stage may be busy, or in a debugger.
        """
        if not self._stall_timeout:
            return
        self._age = self._age + 1 if oldest == self._oldest else 0
        self._oldest = oldest
        self._silent = [count + 1 for count in self._silent]
        most = max(self._silent)
        if oldest is None:
            if self._age >= _SILENT_TICKS and most > _SILENT_TICKS:
                why = f"no heartbeat for {SILENT_BEATS * BEAT_SECONDS:g} s"
                raise self._lost(self._silent.index(most), why)
        elif self._age >= self._stall_ticks:
            limit = f"{self._stall_timeout:g} s ({self._execution.setting('stall_timeout')})"
            raise self._lost(self._culprit(oldest), f"step {oldest} has not ended in {limit}")

    def _culprit(self, oldest: int) -> int:
        """The stage that stands still at step `oldest`: one that is silent since that became the
        oldest. Else it is the first that has not launched its part, or the last, whose device has
        no result."""
        most = max(self._silent)
        if most >= max(self._age, 2 * CHECKS_A_BEAT):  # one that beats has half of that
            return self._silent.index(most)
        behind = [stage for stage, step in enumerate(self._last_steps) if step < oldest]
        return behind[0] if behind else len(self._last_steps) - 1

    def _lost(self, stage: int, why: str) -> WorkerLostError:
        return WorkerLostError(f"worker {stage} of {self._execution.name} stands still: {why}")
