"""The engine core's loop (vLLM RFC 11945, option 2).

Each iteration applies the results that have come, submits steps as far as the scheduler allows, and
sends the clients their updates. A single stage gets its steps as late as it can (`pace`). One
thread, no locks; no send blocks. Stages that are lost are awaited anew: the loop goes on meanwhile,
and computes again what they had in flight.
"""

import logging
import math
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import zmq

from engine_core.config import EngineConfig
from engine_core.executor.stage_link import CHECK_SECONDS, CHECKS_A_BEAT, StageLink
from engine_core.executor.stage_start import Capacity, WorkerLostError
from engine_core.loop.admission import Budget, QueueBound
from engine_core.loop.host_clock import HostClock
from engine_core.loop.jobs import Job, JobKey
from engine_core.loop.outbox import Outbox
from engine_core.loop.pace import Pacer
from engine_core.loop.reports import Statistics, Tracer
from engine_core.loop.restarts import StageLosses
from engine_core.loop.transport import ClientSocket, Pollable
from engine_core.messages import (
    Abort,
    Accepted,
    EncodeJob,
    EndRow,
    GenerateJob,
    Hello,
    JobMessage,
    ReadJob,
    ResetCache,
    ToCore,
    Trace,
)
from engine_core.refusal import RefusalError
from engine_core.workflows.base import Workflow
from engine_core.workflows.tokenizer_threads import JobInputs, TokenizerThreads
from workers.contract.messages import StageReport, StepOutput

log = logging.getLogger(__name__)

_RECEIVE_SECONDS = 1e-3
"""How long an iteration receives at most: a worker must not wait for its next step meanwhile."""


class EngineCore:
    """One model's engine. `run` never returns: it raises WorkerLostError when a stage is lost more
    often than it may be."""

    def __init__(
        self,
        config: EngineConfig,
        workflow: Workflow,
        capacity: Capacity,
        executor: StageLink,
        clients: ClientSocket,
        preprocessor: TokenizerThreads,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`say` sends the supervisor a line, an empty one with every heartbeat. One about a loss of
        stages has the number of their start, and why they are lost."""
        execution = config.execution
        self._info = workflow.engine_info(execution, capacity)
        self._last_stage = execution.num_stages - 1
        self._workflow = workflow
        self._processor = workflow.processor(execution, capacity.num_blocks)
        self._scheduler = workflow.scheduler(execution, capacity.num_blocks, clock)
        self._executor, self._clients, self._preprocessor = executor, clients, preprocessor
        self._budget = Budget(config.max_pending_rows, config.max_pending_tokens)
        self._queue_bound = QueueBound(execution.name, config.max_queue_seconds)
        self._outbox = Outbox(self._job_ended, self._budget.changed, clock)
        self._jobs: dict[JobKey, Job] = {}
        self._known_clients: set[bytes] = set()
        # The steps whose results have not come: the batch of each, and when it was submitted.
        self._in_flight: deque[tuple[Any, float]] = deque()
        self._clock, self._say = clock, say
        self._losses = StageLosses(config, capacity.start_seconds)
        # The stages of a pipeline wait for each other: their steps are submitted at once.
        self._pacer = Pacer() if execution.num_stages == 1 else None
        self._decoder, self._tracer = msgspec.msgpack.Decoder(list[ToCore]), Tracer()
        self._statistics = Statistics(
            execution.num_stages,
            clock(),
            self._tracer,
            self._scheduler.observe,
            {stage: HostClock() for stage, node in enumerate(execution.nodes) if node},
        )
        self._next_check, self._held_until, self._checks = 0.0, math.inf, 0
        own = executor.results, executor.losses, preprocessor.fileno()
        self._sources: list[Pollable] = [clients.arrivals, *own]
        self._poller = zmq.Poller()
        for source in self._sources:
            self._poller.register(source, zmq.POLLIN)

    def run(self) -> None:
        """Serve until stages are lost too often. Raises WorkerLostError once every open job has
        failed."""
        while True:
            self.run_once()

    def run_once(self) -> None:
        """Iterate once. Stages that are lost are awaited anew, or raise WorkerLostError as `run`
        does."""
        try:
            self.iterate()
        except WorkerLostError as error:
            if not self._losses.limit.allow(self._clock()):
                self._fail_all(RefusalError("engine_dead", f"the engine stopped: {error}"))
                raise
            self._await_others(str(error))

    def _fail_all(self, refusal: RefusalError) -> None:
        for job in list(self._jobs.values()):
            self._outbox.fail(job, refusal)
        self._flush()

    def _await_others(self, why: str) -> None:
        """Have all that ran wait for other stages, but for a job that they do not survive."""
        self._say(f"{self._executor.restarts} {why}")
        self._losses.outage.begin(self._clock(), why)
        lost = [batch for batch, _ in self._in_flight]
        cause = self._losses.suspects.lost(job for batch in lost for job in batch.jobs)
        self._in_flight.clear()
        self._scheduler.restart(lost)
        if cause is not None:
            message = f"the model's stages do not survive this request: {why}"
            self._scheduler.abort(cause)
            self._outbox.fail(cause, RefusalError("row_failed", message))
        self._queue_bound.steps_lost()
        self._statistics.steps_lost()
        self._pacer = self._pacer and Pacer()
        self._executor.begin_again()
        self._next_check, self._checks = self._clock(), 0  # clients hear of it now

    def iterate(self) -> None:
        self._receive()
        self._finish()
        self._submit()
        self._flush()
        self._beat()
        self._wait()

    def _submit(self) -> None:
        self._held_until = math.inf
        if not self._executor.is_ready:
            return
        if self._losses.outage.is_on:
            self._go_on()
        if not self._is_isolated():
            return
        while len(self._in_flight) < self._scheduler.depth():
            if self._may_wait():
                return
            oldest = self._in_flight[0][0] if self._in_flight else None
            queued = self._scheduler.queued_tokens
            batch = self._scheduler.schedule(oldest)
            if batch is None:
                return
            step = self._scheduler.build(batch)
            self._in_flight.append((batch, self._clock()))
            self._executor.submit(step)
            # Before the masks: a job that ends by its mask may be the last, and drains the engine.
            self._statistics.step_submitted(step, batch.work)
            self._submit_masks()
            now = self._clock()
            for job in batch.begun:
                job.moments.begin(now)
            self._queue_bound.step_submitted(now, queued, self._scheduler.queued_tokens)
            if self._pacer is not None:
                self._pacer.step_made(now, self._scheduler.num_prompts())
                self._pacer.step_submitted(step, now)

    def _go_on(self) -> None:
        """Tell everybody that the stages are there again."""
        now = self._clock()
        seconds = self._losses.outage.end(now)
        log.info("all stages are ready again after %.1f s; %d jobs go on", seconds, len(self._jobs))
        self._next_check, self._checks = now, 0

    def _is_isolated(self) -> bool:
        """True if a job that is to be computed alone is, or none is to be."""
        suspects = self._losses.suspects
        alone = suspects.alone
        if alone is not suspects.isolated and not self._in_flight:
            self._scheduler.isolate(alone)
            suspects.isolated = alone
        return alone is suspects.isolated

    def _may_wait(self) -> bool:
        """True if the worker does not need the next step yet, and an arrival could join it."""
        if self._pacer is None:
            return False
        prompts = self._scheduler.num_prompts()
        waits = self._pacer.may_wait(self._clock(), prompts) and self._scheduler.is_open()
        if waits:
            self._held_until = self._pacer.due(prompts)
        return waits

    def _finish(self) -> None:
        while (message := self._executor.poll()) is not None:
            if isinstance(message, StageReport):
                self._statistics.step_reported(message.stage, message.step, message.times)
            else:
                self._step_finished(message)

    def _step_finished(self, output: StepOutput) -> None:
        batch, _ = self._in_flight.popleft()
        assert batch.step == output.step, "results come in submit order"
        now = self._clock()
        self._queue_bound.step_finished(now)
        self._statistics.step_finished(now)
        if self._pacer is not None:
            self._pacer.step_finished(output.times, now)
        self._scheduler.update(batch, output, self._outbox)
        self._submit_masks()
        self._statistics.step_reported(self._last_stage, output.step, output.times)

    def _submit_masks(self) -> None:
        """Only sampling needs a step's mask, so the mask follows the step once it is known."""
        for mask in self._scheduler.masks(self._outbox):
            self._executor.submit_mask(mask)

    def _flush(self) -> None:
        for client, outputs in self._outbox.take():
            if not self._clients.send(client, outputs):
                self._client_gone(client)

    def _wait(self) -> None:
        ready = dict(self._poller.poll(0))
        if self._executor.losses in ready:
            self._executor.check_losses()
        if ready:
            return
        timeout = min(self._next_check, self._held_until) - self._clock()
        # ZMQ's poller counts in milliseconds. Its descriptors are edge-triggered: they become
        # readable for everything that arrives after the poll.
        select.select(self._sources, [], [], max(0.0, timeout))

    def _receive(self) -> None:
        until = min(self._clock() + _RECEIVE_SECONDS, self._held_until)
        while self._clock() < until and (arrival := self._clients.receive()) is not None:
            client, frame = arrival
            for message in self._decoder.decode(frame):
                self._handle(client, message)
        for inputs in self._preprocessor.take():
            self._prepare(inputs, waited=True)

    def _handle(self, client: bytes, message: ToCore) -> None:
        match message:
            case GenerateJob() | EncodeJob() | ReadJob():
                self._admit(client, message)
            case EndRow(job=job_id, row=row):
                if (job := self._jobs.get((client, job_id))) is not None:
                    self._outbox.close_rows(job, self._scheduler.abort(job, row))
            case Abort(ids=ids):
                for job_id in ids:
                    self._abort((client, job_id))
            case ResetCache():
                self._scheduler.reset_cache()
            case Trace(seconds=seconds):
                self._tracer.start(client, seconds, self._clock())
            case Hello():
                self._known_clients.add(client)
                self._clients.send(client, self._info)

    def _admit(self, client: bytes, message: JobMessage) -> None:
        try:
            self._workflow.check(message)
            texts = self._processor.texts(message)
            if not message.batch:
                self._check_wait(message)
            job = self._budget.admit(client, message)
        except RefusalError as refusal:
            self._outbox.refuse(client, message.id, refusal)
            return
        job.moments.arrived = self._clock()
        self._jobs[job.key] = job
        if isinstance(message, EncodeJob):
            self._outbox.accept(job, Accepted(message.id))
        if (inputs := self._preprocessor.put(job, texts)) is not None:
            self._prepare(inputs)

    def _prepare(self, inputs: JobInputs, *, waited: bool = False) -> None:
        """Hand the rows of a job whose inputs are ready to the scheduler, or refuse it.

        A job of which any item is refused fails whole: what is computed of others is thrown away.
        """
        job = inputs.job
        if job.ended:
            return
        try:
            if inputs.refusal is not None:
                raise inputs.refusal.copy()
            rows, tokens, accepted = self._processor.prepare(inputs)
            # Once more: the tokens of jobs that came earlier may have been counted since.
            if waited and not inputs.first and not job.is_batch:
                self._check_wait(job.message)
        except RefusalError as refusal:
            self._scheduler.abort(job)
            self._outbox.fail(job, refusal)
            return
        self._statistics.prompts_accepted(tokens)
        if not inputs.first:
            job.moments.queued = self._clock()
        job.tokens += tokens
        if inputs.is_last:
            job.cost = job.tokens
            self._budget.changed(job)
        if accepted is not None:
            self._outbox.accept(job, accepted)
        self._scheduler.add(job, rows)

    def _check_wait(self, message: JobMessage) -> None:
        tokens = self._scheduler.tokens_before(message.priority, message.key)
        self._queue_bound.admit(tokens, self._losses.outage.left(self._clock()))

    def _abort(self, key: JobKey) -> None:
        """End a job silently. `Scheduler.abort` releases its slots and KV blocks at once, and
        `Outbox.end` its budget."""
        if (job := self._jobs.get(key)) is not None:
            self._scheduler.abort(job)
            self._outbox.end(job)

    def _job_ended(self, job: Job) -> None:
        del self._jobs[job.key]
        self._budget.release(job)
        if not self._jobs:
            self._statistics.drained()

    def _client_gone(self, client: bytes) -> None:
        self._known_clients.discard(client)
        for key in [key for key in self._jobs if key[0] == client]:
            self._abort(key)

    def _beat(self) -> None:
        """Check the stages every CHECK_SECONDS. The first and every fourth check send beats."""
        now = self._clock()
        if now < self._next_check:
            return
        # The loop's delays do not add up; what a stopped process has missed is not made up for.
        self._next_check = max(self._next_check + CHECK_SECONDS, now)
        self._executor.check(self._in_flight[0][0].step if self._in_flight else None)
        self._checks += 1
        if self._checks % CHECKS_A_BEAT != 1:
            return
        self._say("")
        beat = self._statistics.beat(
            self._scheduler.usage(),
            self._budget.held,
            now,
            in_flight=[since for _, since in self._in_flight],
            expected_wait_s=self._queue_bound.expected_wait(
                self._scheduler.tokens_before(0), self._losses.outage.left(now)
            ),
            restarts=self._executor.restarts,
            loss=self._losses.outage.report(now),
        )
        for client in list(self._known_clients):
            if not self._clients.send(client, beat):
                self._client_gone(client)
        for client, steps in self._tracer.take(now):
            if not self._clients.send(client, steps):
                self._tracer.forget(client)
