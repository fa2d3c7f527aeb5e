"""Sends the times of steps to clients that have asked for a trace, and costs nothing otherwise."""

from collections.abc import Iterator, Sequence

import numpy as np

from engine_core.traced_steps import MAX_TRACE_SECONDS, TracedStep, TracedSteps
from workers.contract.messages import DecodeStep, StepInput, StepTimes

_MOST_STEPS = 10_000
"""Between two heartbeats, which are a second apart; more than any engine runs."""


class Tracer:
    """Keeps what `record` is given until `take` sends it, while there is anybody to send it to."""

    def __init__(self) -> None:
        self._ends: dict[bytes, float] = {}
        self._steps: list[TracedStep] = []

    def start(self, client: bytes, seconds: float, now: float) -> None:
        """A client wants the steps of the next `seconds`."""
        self._ends[client] = now + min(max(seconds, 0.0), MAX_TRACE_SECONDS)

    def record(self, step: StepInput, times: Sequence[StepTimes], *, continued: bool) -> None:
        """Every stage has reported the step: `times` are in their order."""
        if self._ends and len(self._steps) < _MOST_STEPS:
            self._steps.append(_traced(step, times, continued=continued))

    def take(self, now: float) -> Iterator[tuple[bytes, TracedSteps]]:
        """What to send to each client; those whose time is over get their last message."""
        steps, self._steps = self._steps, []
        for client, end in list(self._ends.items()):
            if end <= now:
                del self._ends[client]
            yield client, TracedSteps(steps, over=end <= now)

    def forget(self, client: bytes) -> None:
        """A client is gone."""
        self._ends.pop(client, None)


def _traced(step: StepInput, times: Sequence[StepTimes], *, continued: bool) -> TracedStep:
    lens = np.frombuffer(step.query_lens, np.int32)
    tokens = int(lens.sum())
    decode_rows = earlier = 0
    if isinstance(step, DecodeStep):
        sampled = np.frombuffer(step.sample, np.uint8)
        decode_rows = int(((lens == 1) & (sampled > 0)).sum())
        earlier = int(np.frombuffer(step.starts, np.int32).sum())
    return TracedStep(
        step=step.step,
        rows=len(lens),
        tokens=tokens,
        prompt_tokens=tokens - decode_rows,
        context_tokens=earlier + tokens,
        continued=continued,
        times=list(times),
    )
