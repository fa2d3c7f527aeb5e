"""Takes steps from the engine core in order, and runs one stage's share of each."""

import time
from typing import Generic

import torch

from workers.heads.base import HeadResult
from workers.links.activations import Neighbours
from workers.stage.model_runner import InputT, ModelRunner, StepT
from workers.stage.result_sender import ResultSender


class Stage(Generic[StepT, InputT]):
    """A stage that is ready. `last_finished_step` is the newest step of which it has done its
    share, -1 before the first; heartbeats report it to the engine core."""

    def __init__(
        self, runner: ModelRunner[StepT, InputT], neighbours: Neighbours, results: ResultSender
    ) -> None:
        self.last_finished_step = -1
        self._runner = runner
        self._neighbours = neighbours
        self._results = results

    def run(self, message: StepT) -> None:
        """Run one step, or queue it on the device; the last stage sends its result."""
        batch = self._runner.prepare(message)
        self._results.begin()
        waiting = time.perf_counter()
        hidden = self._receive(batch)
        waited = time.perf_counter() - waiting
        hidden = self._runner.forward(batch, hidden)
        if self._neighbours.next is not None:
            self._neighbours.next.send(hidden)
        else:
            self._results.end(message.step, self._run_head(message, batch, hidden), waited)
        self.last_finished_step = message.step

    def _run_head(self, message: StepT, batch: InputT, hidden: torch.Tensor) -> HeadResult:
        del message  # a head that samples needs it
        return self._runner.run_head(batch, hidden)

    def _receive(self, batch: InputT) -> torch.Tensor | None:
        previous = self._neighbours.previous
        return None if previous is None else previous.receive(self._runner.padded_tokens(batch))
