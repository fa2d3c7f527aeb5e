"""The engine core's end of the ZMQ socket to all stages.

The workers' end is `workers/links/engine_link.py`.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from engine_core.config import EngineConfig
from engine_core.executor.rendezvous import RendezvousStore
from engine_core.executor.stage_start import Capacity, StageStart, StartMessage, WorkerLostError
from engine_core.loop.transport import Pollable, is_readable, open_router
from workers.contract.config import ExecutionConfig
from workers.contract.curve import Refusals
from workers.contract.messages import (
    FromWorker,
    LinkName,
    StageReport,
    StepInput,
    StepMask,
    StepOutput,
    StoreCall,
    ToWorker,
    WorkerBeat,
    WorkerFailed,
)
from workers.contract.process import BEAT_SECONDS, SILENT_BEATS

CHECK_SECONDS = 0.25
"""Seconds between two calls of `StageLink.check`: how late a stage that stands still is noticed."""

CHECKS_A_BEAT = round(BEAT_SECONDS / CHECK_SECONDS)


_CAUSE_SECONDS = 0.2
"""From the first sign of a loss until it is answered, if its cause remains unknown."""

_SILENT_TICKS = SILENT_BEATS * CHECKS_A_BEAT


class StageLink:
    """Sends every step to every stage, and takes what they report. Results come from the last one,
    in submit order. An earlier stage's report may come before the step's result, or after it.

    `results` is readable when `poll` has something, `losses` when a stage may be gone. Every method
    raises WorkerLostError once a stage is lost or stands still.

    Once a stage is lost, all are started again, by the supervisor: `begin_again`. Who has started
    when is in the names of links. Only what comes from a link of a stage is heard. ZMQ gives a name
    to the first who asks for it, and hears nothing of others under that name.
    """

    def __init__(self, config: EngineConfig, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        execution, self._config = config.execution, config
        self._stages = range(execution.num_stages)
        self._restarts, self._heard = execution.restarts, False
        # What stages of a later start have said before the loss of these is noticed.
        self._early: deque[tuple[bytes, list[zmq.Frame]]] = deque()
        self._watch = StageWatch(config)
        self._start = StageStart(execution, self._send)
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

    def start(self, on_wait: Callable[[], None] = lambda: None) -> Capacity:
        """Wait for all stages. `on_wait` is called several times a second."""
        begun = time.monotonic()
        while self.poll() is not None or not self.is_ready:
            happened = dict(self._poller.poll(round(CHECK_SECONDS * 1e3)))
            if self.losses in happened:
                self.check_losses()
            elif not happened:
                self.check(None)
            on_wait()
        return replace(self._start.capacity, start_seconds=time.monotonic() - begun)

    @property
    def is_ready(self) -> bool:
        """Whether all stages can be given steps."""
        return self._start.is_over

    @property
    def restarts(self) -> int:
        """How many times stages were started before those that run, or are awaited."""
        return self._restarts

    def begin_again(self) -> None:
        """Wait for other stages, without blocking. Nothing more is heard of those before."""
        self._restarts += 1
        self._heard = False
        self._start.begin_again()
        self._store = RendezvousStore()
        self._losses.forget()
        self._watch = StageWatch(self._config)

    def submit(self, step: StepInput) -> None:
        """Hand one step to all stages, without blocking."""
        self._send(step, self._stages)

    def submit_mask(self, mask: StepMask) -> None:
        """Hand the mask of a submitted step to the last stage, without blocking."""
        self._send(mask, self._stages[-1:])

    def poll(self) -> StepOutput | StageReport | None:
        """The next report that has come, or None. What stages say of their start is dealt with."""
        while isinstance(message := self._receive(), StartMessage):
            self._start.take(message)
        return message

    def check(self, oldest: int | None) -> None:
        """See that no stage stands still, every CHECK_SECONDS. `oldest` is the oldest open step."""
        if self.is_ready:
            self._watch.tick(oldest)
        else:
            self._watch.tick_of_start()

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

    def _send(self, message: ToWorker, stages: Sequence[int]) -> None:
        frame = self._encoder.encode(message)
        for stage in stages:
            try:
                name = bytes(LinkName("stage", stage, self._restarts))
                self.results.send_multipart([name, frame], zmq.NOBLOCK, copy=True)
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
        if self._losses.noticed:
            self._raise_lost()
        return None

    def _next(self) -> FromWorker | None:
        """The next message that has come of the stages. Calls of the store are answered."""
        while self._early or is_readable(self.results):
            name, frames = self._early.popleft() if self._early else self._received()
            link = LinkName.of(name)
            if link is None or link.stage not in self._stages or link.restarts < self._restarts:
                continue
            if link.restarts > self._restarts and self._heard:
                self._early.appendleft((name, frames))
                self._losses.succeeded()
                return None
            # A frame may have megabytes, if it holds vectors.
            message = self._decoded(frames)
            if message is not None:
                self._restarts, self._heard = link.restarts, True
            if isinstance(message, StoreCall):
                answer = self._encoder.encode(self._store.answer(message))
                with suppress(zmq.ZMQError):  # its connection is closed
                    self.results.send_multipart([name, answer], zmq.NOBLOCK)
            elif message is not None:
                self._note(message, frames[0])
                return message
        return None

    def _received(self) -> tuple[bytes, list[zmq.Frame]]:
        name, *frames = self.results.recv_multipart(copy=False)
        return name.bytes, frames

    def _decoded(self, frames: Sequence[zmq.Frame]) -> FromWorker | None:
        """The message, or None for what no stage sends."""
        if len(frames) == 1:
            with suppress(msgspec.MsgspecError):
                return self._decoder.decode(frames[0].buffer)
        return None

    def _note(self, message: FromWorker, frame: zmq.Frame) -> None:
        if isinstance(message, WorkerBeat):
            self._losses.connected(message.stage, frame.get(zmq.SRCFD))
        elif isinstance(message, WorkerFailed):
            self._losses.failed(message)


class Losses:
    """The signs that stages are lost, and which of them is the cause.

    A process that is killed says nothing. The kernel closes its connection, which ZMQ reports by
    its file descriptor. A neighbour may find its own link to that stage broken before.
    """

    def __init__(self, socket: zmq.Socket[bytes], execution: ExecutionConfig) -> None:
        """Watch the connections of `socket`, which is not bound yet."""
        self.monitor = socket.get_monitor_socket(Refusals.EVENTS)
        self._socket = socket
        self._model = execution.engine_name
        self._refusals = Refusals(execution.worker_endpoint)
        self._stages: dict[int, int] = {}  # file descriptor -> stage
        self._gone: list[int] = []
        self._failures: dict[int, WorkerFailed] = {}
        self._succeeded = False

    @property
    def noticed(self) -> bool:
        return bool(self._gone or self._failures or self._succeeded)

    def forget(self) -> None:
        """Watch other stages from now on."""
        self._stages.clear()
        self._gone.clear()
        self._failures.clear()
        self._succeeded = False

    def succeeded(self) -> None:
        """Note that others are there in place of these stages."""
        self._succeeded = True

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
        if self._succeeded and not failures:
            return f"the stages of {self._model} were started again"
        return f"a worker of {self._model} has gone" if guessed else None

    def close(self) -> None:
        self._socket.disable_monitor()
        self.monitor.close(0)


class StageWatch:
    """Finds a stage that stands still, by counting calls of `tick`.

    A clock would take time in which this process itself was stopped for a stage's silence.
    """

    def __init__(self, config: EngineConfig) -> None:
        execution = self._execution = config.execution
        self._stall_timeout, self._startup_timeout = config.stall_timeout, config.startup_timeout
        self._stall_ticks = math.ceil(self._stall_timeout / CHECK_SECONDS)
        self._ticks_of_start = 0
        self._silent = [0] * execution.num_stages  # ticks since the last heartbeat
        self._last_steps = [-1] * execution.num_stages  # the last step each has done its share of
        self._oldest: int | None = None
        self._age = 0  # ticks for which `_oldest` has been the same

    def heard(self, beat: WorkerBeat) -> None:
        self._silent[beat.stage] = 0
        self._last_steps[beat.stage] = beat.last_finished_step

    def tick_of_start(self) -> None:
        """Raise WorkerLostError if the stages have been starting for too long."""
        self._ticks_of_start += 1
        limit = self._startup_timeout
        if limit and self._ticks_of_start * CHECK_SECONDS > limit:
            setting = self._execution.setting("startup_timeout")
            why = f"the stages of {self._execution.engine_name} are not ready after {limit:g} s"
            raise WorkerLostError(f"{why} ({setting})")

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
        name = self._execution.engine_name
        return WorkerLostError(f"worker {stage} of {name} stands still: {why}")
