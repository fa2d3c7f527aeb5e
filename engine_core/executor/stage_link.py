"""The engine core's end of the one ZMQ socket to all stages, which are processes of this host.

The workers' end is `workers/links/engine_link.py`.
"""

import logging
import math
import time
from collections.abc import Sequence
from typing import NoReturn, TypeVar

import msgspec
import zmq

from engine_core.config import EngineConfig
from engine_core.executor.base import Capacity, WorkerLostError
from engine_core.executor.capacity import kv_blocks
from engine_core.executor.losses import Losses
from engine_core.executor.partition import stage_shares
from engine_core.executor.watch import StageWatch
from engine_core.transport import Pollable, is_readable, open_router
from workers.contract.messages import (
    AllocateKV,
    FromWorker,
    StageReport,
    StepInput,
    StepMask,
    StepOutput,
    ToWorker,
    WorkerBeat,
    WorkerConnected,
    WorkerFailed,
    WorkerLoaded,
    WorkerReady,
)

log = logging.getLogger(__name__)
StartMessage = WorkerConnected | WorkerLoaded | WorkerReady
StageT = TypeVar("StageT", WorkerConnected, WorkerLoaded, WorkerReady)

_CAUSE_SECONDS = 0.2
"""From the first sign of a loss until it is answered, if its cause remains unknown."""


class StageLink:
    """The `Executor` of worker processes, one a stage. The loss of one shows at once: the kernel
    closes its socket."""

    def __init__(self, config: EngineConfig, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        execution = self._execution = config.execution
        self._stages = range(execution.num_stages)
        self._watch = StageWatch(execution, config.stall_timeout)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromWorker)
        self.results = open_router(context)
        self._losses = Losses(self.results, execution.name)
        self.results.bind(execution.worker_endpoint)

    @property
    def losses(self) -> Pollable:
        return self._losses.monitor

    def start(self) -> Capacity:
        """Wait for every stage, give each its share, wait until all have loaded, size the KV cache,
        wait until all are ready."""
        connected = [self._await(WorkerConnected) for _ in self._stages]
        shares = stage_shares(self._execution, connected)
        for stage, share in zip(self._stages, shares, strict=True):
            self._send(share, [stage])
        loaded = [self._await(WorkerLoaded) for _ in self._stages]
        weight_bytes = sum(stage.weight_bytes for stage in loaded)
        seconds = max(stage.seconds for stage in loaded)
        log.info("weights: %s bytes in %.1f s", f"{weight_bytes:,}", seconds)
        num_blocks = kv_blocks(self._execution, loaded)
        self._send(AllocateKV(num_blocks), self._stages)
        for _ in self._stages:
            self._await(WorkerReady)
        return Capacity(weight_bytes, num_blocks)

    def submit(self, step: StepInput) -> None:
        self._send(step, self._stages)

    def submit_mask(self, mask: StepMask) -> None:
        self._send(mask, self._stages[-1:])

    def poll(self) -> StepOutput | StageReport | None:
        message = self._receive()
        assert not isinstance(message, StartMessage), f"unexpected {message!r}"
        return message

    def check(self, oldest: int | None) -> None:
        self._watch.tick(oldest)

    def raise_lost(self) -> NoReturn:
        poller = self._poller()
        until = time.monotonic() + _CAUSE_SECONDS
        while True:
            # In this order: what a stage has said before it went is there once it is known to be
            # gone, and says more.
            self._losses.read()
            while (message := self._next()) is not None:
                if isinstance(message, WorkerFailed):
                    self._losses.failed(message)
            cause, left = self._losses.cause(), until - time.monotonic()
            if cause is not None or left <= 0:
                raise WorkerLostError(cause or self._losses.guess())
            poller.poll(math.ceil(left * 1e3))

    def close(self) -> None:
        """Close the sockets; the supervisor ends the processes."""
        self._losses.close()
        self.results.close(0)

    def _await(self, kind: type[StageT]) -> StageT:
        """The next message of a starting stage, which must be of this kind."""
        poller = self._poller()
        while (message := self._receive()) is None:
            if self.losses in dict(poller.poll()):
                self.raise_lost()
        assert isinstance(message, kind), f"unexpected {message!r}"
        return message

    def _poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self.results, zmq.POLLIN)
        poller.register(self._losses.monitor, zmq.POLLIN)
        return poller

    def _send(self, message: ToWorker, stages: Sequence[int]) -> None:
        frame = self._encoder.encode(message)
        for stage in stages:
            try:
                self.results.send_multipart([b"stage-%d" % stage, frame], zmq.NOBLOCK, copy=True)
            except zmq.ZMQError:
                self._losses.unreachable(stage)
                self.raise_lost()

    def _receive(self) -> StepOutput | StageReport | StartMessage | None:
        """The next message that has come and is no heartbeat, or None."""
        while (message := self._next()) is not None:
            if isinstance(message, WorkerFailed):
                self._losses.failed(message)
                self.raise_lost()
            if not isinstance(message, WorkerBeat):
                return message
            self._watch.heard(message)
        return None

    def _next(self) -> FromWorker | None:
        if not is_readable(self.results):
            return None
        self.results.recv()  # the sender's identity
        frame = self.results.recv(copy=False)  # megabytes, if it holds vectors
        message = self._decoder.decode(frame.buffer)
        if isinstance(message, WorkerBeat):
            self._losses.connected(message.stage, frame.get(zmq.SRCFD))
        return message
