"""A discrete-event model of one engine: our scheduler, and stages that take measured times.

Every stage runs steps in submit order, so when a step begins and ends on each stage follows from
the steps before it alone: nothing has to be simulated in smaller events than steps.

Between hosts NCCL's send and receive are queued on the streams that compute. So both stages are
taken from when the receiver has come so far until the hidden states are there.
"""

import math
import random
from array import array
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

from benchmarks.pipeline.loads import Load
from benchmarks.pipeline.stages import Pipeline
from engine_core.loop.jobs import Job
from engine_core.loop.outbox import Outbox
from engine_core.messages import GenerateJob, SamplingParams
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.decoder import DecoderScheduler
from engine_core.schedulers.request import Request
from workers.contract.messages import GenerateOutput

_TOKEN = 5


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A step, how many might be in flight when it was submitted, and when it began and ended on
    each stage, in seconds."""

    batch: DecodeBatch
    depth: int
    stages: list[tuple[float, float]]


@dataclass(slots=True)
class Answer:
    """The times at which a request arrived and got its first and its newest token."""

    arrival: float
    first: float = 0.0
    newest: float = 0.0
    tokens: int = 0

    def add_token(self, now: float) -> None:
        self.first = self.first or now
        self.newest = now
        self.tokens += 1


@dataclass
class Run:
    """What came of a load: all steps in submit order, the answers by request, and the seconds from
    the first request to the last result."""

    seconds: float = 0.0
    steps: list[SimulatedStep] = field(default_factory=list[SimulatedStep])
    answers: list[Answer] = field(default_factory=list[Answer])

    def first_token(self) -> float:
        """Seconds to the first token, the median."""
        return median(answer.first - answer.arrival for answer in self.answers)

    def next_token(self) -> float:
        """Seconds from one token to the next, the mean over answers. 0 if they have one each."""
        longer = [answer for answer in self.answers if answer.tokens > 1]
        each = [(answer.newest - answer.first) / (answer.tokens - 1) for answer in longer]
        return fmean(each) if each else 0.0

    def bubbles(self) -> list[float]:
        """The share of each stage's time that it was idle, from its first step's start to its last
        one's end."""
        return [self._bubble(stage) for stage in range(len(self.steps[0].stages))]

    def _bubble(self, stage: int) -> float:
        times = [step.stages[stage] for step in self.steps]
        busy = sum(end - begin for begin, end in times)
        return max(0.0, 1 - busy / (times[-1][1] - times[0][0]))  # but for rounding


class SimulatedEngine:
    """An engine core and its stages; `run` serves a load to its end."""

    def __init__(
        self,
        scheduler: DecoderScheduler,
        pipeline: Pipeline,
        *,
        jitter: float = 0.0,
        learns: bool = False,
    ) -> None:
        """Each step's time on each stage is off by a random share of about `jitter`. The scheduler
        `learns` what steps cost from their times, or its cost model stays frozen."""
        self._jitter = jitter
        self._learns = learns
        self._random = random.Random(0)
        self._scheduler = scheduler
        self._pipeline = pipeline
        self._times = pipeline.times[0]
        self._outbox = Outbox(lambda _: None)
        self._free = [0.0] * len(pipeline.layers)
        self._ends: dict[int, float] = {}
        self._in_flight: deque[tuple[DecodeBatch, float]] = deque()
        self._arriving: deque[Load] = deque()
        self._now = 0.0
        self._run = Run()

    def run(self, requests: list[Load]) -> Run:
        """Serve these requests, which are in the order of their arrival."""
        self._arriving.extend(requests)
        while self._arriving or self._in_flight:
            while self._arriving and self._arriving[0].arrival <= self._now:
                self._add(self._arriving.popleft())
            while self._submit():
                pass
            self._wait()
        self._run.seconds = self._now
        return self._run

    def _wait(self) -> None:
        """For the next arrival or the oldest step, which the core then finishes."""
        arrival = self._arriving[0].arrival if self._arriving else math.inf
        if self._in_flight and self._in_flight[0][1] <= arrival:
            self._finish()
        elif self._arriving:
            self._now = max(self._now, arrival)

    def _add(self, load: Load) -> None:
        number = len(self._run.answers)
        self._run.answers.append(Answer(load.arrival))
        params = SamplingParams(max_tokens=load.output, ignore_eos=True)
        job = Job(b"client", GenerateJob(number, params=params), 1, 0)
        # Unlike each other from the first token on: nothing is found in the prefix cache.
        tokens = array("i", [number]) * load.prompt
        limit = load.prompt + load.output
        self._scheduler.add(job, [Request(job, 0, params, tokens, max_len=limit, seed=0)])

    def _submit(self) -> bool:
        depth = self._scheduler.depth()
        if len(self._in_flight) >= depth:
            return False
        batch = self._scheduler.schedule(self._in_flight[0][0] if self._in_flight else None)
        if batch is None:
            return False
        self._scheduler.build(batch)
        self._now += self._times.core(batch) / 2
        begins_ends = self._through_stages(batch)
        end = begins_ends[-1][1]
        self._ends[batch.step] = end
        result = end + self._times.result_ms / 1e3 + self._pipeline.way_back
        self._in_flight.append((batch, result))
        self._run.steps.append(SimulatedStep(batch, depth, begins_ends))
        return True

    def _through_stages(self, batch: DecodeBatch) -> list[tuple[float, float]]:
        """When the step begins and ends on each stage."""
        pipeline, free = self._pipeline, self._free
        ready = self._now + self._times.launch_ms / 1e3
        if batch.after >= 0:
            returned = self._ends[batch.after] + self._times.token_return_ms / 1e3
            ready = max(ready, returned + pipeline.way_back)
        hop, transfer = self._times.hop(batch), pipeline.transfer(batch.num_tokens)
        times: list[tuple[float, float]] = []
        for stage, seconds in enumerate(pipeline.seconds(batch)):
            begin = max(ready, free[stage])
            end = begin + seconds * max(0.0, self._random.gauss(1.0, self._jitter))
            times.append((begin, end))
            free[stage] = end
            if stage + 1 == len(free) or not pipeline.leaves_host(stage):
                ready = end + hop
            else:
                ready = max(end, free[stage + 1]) + transfer
                free[stage] = free[stage + 1] = ready
        return times

    def _finish(self) -> None:
        """The core waits for the oldest step, then takes all results that have come."""
        self._now = max(self._now, self._in_flight[0][1])
        while self._in_flight and self._in_flight[0][1] <= self._now:
            batch, came = self._in_flight.popleft()
            for request, sampled in zip(batch.requests, batch.samples, strict=True):
                if sampled:
                    self._run.answers[request.job.message.id].add_token(came)
            tokens = np.full(sum(batch.samples), _TOKEN, np.int32).tobytes()
            output = GenerateOutput(batch.step, tokens=tokens)
            self._scheduler.update(batch, output, self._outbox)
            self._outbox.take()
            if self._learns:
                times = self._run.steps[batch.step].stages
                self._scheduler.observe(batch.work, max(end - begin for begin, end in times))
            self._now += self._times.core(batch) / 2
