"""The two-stage loop (vLLM RFC 11945, option 2, in a thread of its own).

Submitting (schedule, build, send) is separate from finishing (receive, update). The loop submits
while it may and there is work, takes whatever has finished, says what there is to say, and waits
in one poller otherwise. One thread, no locks around state; no send ever blocks.
"""

import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import zmq

from engine_core.config import EngineConfig
from engine_core.executor.base import Capacity, Executor, Pollable, WorkerLostError
from engine_core.job import Budget, Job, JobKey, RefusalError
from engine_core.messages import (
    Abort,
    Beat,
    EncodeJob,
    EndRow,
    EngineInfo,
    GenerateJob,
    Hello,
    ToCore,
)
from engine_core.outbox import Outbox
from engine_core.tokenizing import Tokenized, TokenizingThreads
from engine_core.workflows.base import Workflow

_BEAT_SECONDS = 1.0


class Clients(Protocol):
    """What the loop needs of its clients' socket (`transport.ClientSocket`)."""

    @property
    def arrivals(self) -> Pollable:
        """Readable when `receive` has something."""
        ...

    def receive(self) -> tuple[bytes, bytes] | None:
        """(client, frame), or None if nothing has arrived."""
        ...

    def send(self, client: bytes, message: msgspec.Struct) -> bool:
        """Queue one message; never blocks. False if the client is gone."""
        ...


@dataclass(frozen=True, slots=True)
class _InFlight:
    batch: Any
    step: int
    since: float


class EngineCore:
    """One model's engine. `run` returns never: it raises WorkerLostError when a stage is lost."""

    def __init__(
        self,
        config: EngineConfig,
        workflow: Workflow,
        capacity: Capacity,
        executor: Executor,
        clients: Clients,
        tokenizing: TokenizingThreads,
    ) -> None:
        self._info = EngineInfo(
            tasks=list(workflow.tasks),
            max_model_len=config.max_model_len,
            vocab_size=config.model.vocab_size,
            vector_size=workflow.vector_size(config.model),
            kv_tokens=capacity.num_blocks * config.block_size,
            weight_bytes=capacity.weight_bytes,
        )
        self._depth = config.depth
        self._processor = workflow.processor(config, capacity.num_blocks)
        self._scheduler = workflow.scheduler(config, capacity.num_blocks)
        self._executor = executor
        self._clients = clients
        self._tokenizing = tokenizing
        self._budget = Budget(config.max_pending_rows, config.max_pending_tokens)
        self._outbox = Outbox(self._job_ended)
        self._jobs: dict[JobKey, Job] = {}
        self._known_clients: set[bytes] = set()
        self._in_flight: deque[_InFlight] = deque()
        self._decoder = msgspec.msgpack.Decoder(ToCore)
        self._steps = self._prompt_tokens = 0
        self._next_beat = 0.0
        self._poller = zmq.Poller()
        sources: list[Pollable] = [
            clients.arrivals,
            executor.results,
            executor.losses,
            tokenizing.fileno(),
        ]
        for source in sources:
            self._poller.register(source, zmq.POLLIN)

    def run(self) -> None:
        """Serve until a worker is lost; every open job has then been failed.

        Raises WorkerLostError.
        """
        try:
            while True:
                self.turn()
        except WorkerLostError as error:
            for job in list(self._jobs.values()):
                self._outbox.fail(job, RefusalError("engine_dead", f"the engine stopped: {error}"))
            self._flush()
            raise

    def turn(self) -> None:
        """One turn of the loop."""
        self._receive()
        self._finish()
        self._submit()
        self._flush()
        self._beat()
        self._wait()

    def _submit(self) -> None:
        while len(self._in_flight) < self._depth:
            oldest = self._in_flight[0].batch if self._in_flight else None
            batch = self._scheduler.schedule(oldest)
            if batch is None:
                return
            step = self._scheduler.build(batch)
            self._executor.submit(step)
            self._in_flight.append(_InFlight(batch, step.step, time.monotonic()))
            self._steps += 1

    def _finish(self) -> None:
        while (output := self._executor.poll()) is not None:
            finished = self._in_flight.popleft()
            assert finished.step == output.step, "results come in submit order"
            self._scheduler.update(finished.batch, output, self._outbox)

    def _flush(self) -> None:
        for client, outputs in self._outbox.take():
            if not self._clients.send(client, outputs):
                self._client_gone(client)

    def _wait(self) -> None:
        timeout = max(0.0, self._next_beat - time.monotonic())
        ready = dict(self._poller.poll(math.ceil(timeout * 1000)))
        if self._executor.losses in ready:
            self._executor.raise_lost()

    def _receive(self) -> None:
        while (arrival := self._clients.receive()) is not None:
            client, frame = arrival
            self._handle(client, self._decoder.decode(frame))
        for done in self._tokenizing.take():
            if done.error is not None:
                refusal = RefusalError("invalid_request", done.error)
                self._outbox.fail(done.job, refusal)
            elif not done.job.ended:
                self._prepare(done.job, done.done)

    def _handle(self, client: bytes, message: ToCore) -> None:
        match message:
            case GenerateJob() | EncodeJob():
                self._admit(client, message)
            case EndRow(job=job_id, row=row):
                if (job := self._jobs.get((client, job_id))) is not None:
                    self._outbox.close_rows(job, self._scheduler.drop(job, row))
            case Abort(ids=ids):
                for job_id in ids:
                    self._abort((client, job_id))
            case Hello():
                self._known_clients.add(client)
                self._clients.send(client, self._info)

    def _admit(self, client: bytes, message: GenerateJob | EncodeJob) -> None:
        try:
            texts = self._processor.texts(message)
            job = self._budget.admit(client, message)
        except RefusalError as refusal:
            self._outbox.refuse(client, message.id, refusal)
            return
        self._jobs[job.key] = job
        if texts:
            self._tokenizing.put(job, texts)
        else:
            self._prepare(job, [Tokenized(ids) for ids in message.ids])

    def _prepare(self, job: Job, tokenized: list[Tokenized]) -> None:
        try:
            accepted, rows = self._processor.prepare(job, tokenized)
        except RefusalError as refusal:
            self._outbox.fail(job, refusal)
            return
        tokens = sum(accepted.prompt_tokens)
        self._prompt_tokens += tokens
        self._budget.correct(job, tokens)
        self._outbox.accept(job, accepted)
        self._scheduler.add(job, rows)

    def _abort(self, key: JobKey) -> None:
        if (job := self._jobs.get(key)) is not None:
            self._scheduler.drop(job)
            self._outbox.drop(job)

    def _job_ended(self, job: Job) -> None:
        del self._jobs[job.key]
        self._budget.release(job)

    def _client_gone(self, client: bytes) -> None:
        self._known_clients.discard(client)
        for key in [key for key in self._jobs if key[0] == client]:
            self._abort(key)

    def _beat(self) -> None:
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + _BEAT_SECONDS
        usage = self._scheduler.usage()
        beat = Beat(
            running=usage.running,
            waiting=usage.waiting,
            kv_blocks_used=usage.kv_blocks_used,
            kv_blocks_total=usage.kv_blocks_total,
            stalled_s=now - self._in_flight[0].since if self._in_flight else 0.0,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=usage.cached_tokens,
            generated_tokens=usage.generated_tokens,
            preemptions=usage.preemptions,
        )
        for client in list(self._known_clients):
            if not self._clients.send(client, beat):
                self._client_gone(client)
