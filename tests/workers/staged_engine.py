"""An engine core over real stages in this process, and its clients."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from engine_core.messages import Abort, JobMessage
from tests.engine_core.fake_transport import Engine
from tests.engine_core.test_core import A, idle
from tests.workers.inline_engine import Mutation, unchanged
from tests.workers.stages import EncoderStages, Stages
from workers.contract.messages import DecodeStep, EncodeStep, StepInput, StepMask, StepOutput
from workers.stage.decode_runner import DecodeInput


@dataclass
class _Step:
    """A step in flight: what the first stage has made of it, once it has run it."""

    message: DecodeStep
    batch: DecodeInput | None = None
    hidden: torch.Tensor | None = None


class DecoderRunner:
    """Stages in this process. The first runs each step as soon as it may, which is when the tokens
    of step `after` have returned to it; the others when the step's result is requested."""

    def __init__(self, stages: Stages, mutate: Mutation = unchanged) -> None:
        self.stages = stages
        self.most_in_flight = 0
        self._mutate = mutate
        self._steps: deque[_Step] = deque()
        self._masks: dict[int, StepMask] = {}
        self._finished = -1

    def __len__(self) -> int:
        return len(self._steps)

    def submit(self, step: StepInput) -> None:
        assert isinstance(step, DecodeStep)
        self._steps.append(_Step(self._mutate(step)))
        self.most_in_flight = max(self.most_in_flight, len(self._steps))
        self._run_first_stage()

    def submit_mask(self, mask: StepMask) -> None:
        self._masks[mask.step] = mask

    @torch.inference_mode()
    def next_result(self) -> StepOutput:
        step = self._steps.popleft()
        batch, hidden = step.batch, step.hidden
        for runner in self.stages.runners[1:]:
            batch = runner.prepare(step.message)
            hidden = runner.forward(batch, hidden)
        assert batch is not None
        assert hidden is not None
        number = step.message.step
        last, bits = self.stages.runners[-1], lambda: self._masks.pop(number).bits
        result = last.run_head(batch, hidden, bits)
        output = result.to_output(step.message.step)
        self.stages.keep_tokens(batch.requested, output)
        self._finished = step.message.step
        self._run_first_stage()
        return output

    @torch.inference_mode()
    def _run_first_stage(self) -> None:
        first = self.stages.runners[0]
        for step in self._steps:
            if step.batch is None:
                if step.message.after > self._finished:
                    return
                step.batch = first.prepare(step.message)
                step.hidden = first.forward(step.batch, None)


class EncoderRunner:
    def __init__(
        self, stages: EncoderStages, mutate: Callable[[EncodeStep], EncodeStep] | None = None
    ) -> None:
        self._stages, self._mutate = stages, mutate
        self._steps: deque[EncodeStep] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def submit(self, step: StepInput) -> None:
        assert isinstance(step, EncodeStep)
        self._steps.append(self._mutate(step) if self._mutate else step)

    def next_result(self) -> StepOutput:
        return self._stages.run(self._steps.popleft())


@dataclass(frozen=True)
class Visit:
    """A job that comes in one iteration of the loop, and perhaps is aborted in a later one."""

    job: JobMessage
    comes: int = 0
    leaves: int | None = None


def serve(engine: Engine, visits: Sequence[Visit], draw: random.Random) -> None:
    """Bring all visits to their end; in each iteration up to two results come."""
    for iteration in count():
        for visit in visits:
            if visit.comes == iteration:
                engine.clients.put(A, visit.job)
            if visit.leaves == iteration:
                engine.clients.put(A, Abort([visit.job.id]))
        if idle(engine) and all(visit.comes < iteration for visit in visits):
            return
        engine.executor.allowed = draw.randrange(3)
        engine.iterate()
