"""Takes steps from the engine core in order, and runs one stage's share of each."""

from typing import Generic

import torch

from workers.heads.base import HeadResult
from workers.layers.linear import pad_rows
from workers.links.transport import Links
from workers.stage.model_runner import InputT, ModelRunner, StepT, num_tokens
from workers.stage.result_sender import ResultSender


class Stage(Generic[StepT, InputT]):
    """A stage that is ready. `last_finished_step` is the newest step of which it has done its
    share, -1 before the first; heartbeats report it to the engine core."""

    def __init__(
        self, runner: ModelRunner[StepT, InputT], links: Links, results: ResultSender
    ) -> None:
        self.last_finished_step = -1
        self._runner = runner
        self._links = links
        self._results = results
        self._timer = results.timer

    def run(self, message: StepT) -> None:
        """Run one step, or queue it on the device, and report it."""
        batch = self._runner.prepare(message)
        self._timer.begin()
        hidden = self._receive(message)
        self._timer.arrived()
        hidden = self._runner.forward(batch, hidden)
        result = None
        if self._links.next is None:
            result = self._run_head(message, batch, hidden)
            self._timer.computed()
        else:
            self._timer.computed()
            reused = self._runner.reuses_states(batch)
            self._links.next.send(message.step, hidden[: num_tokens(message)], reused=reused)
        self._results.send(message.step, result)
        self.last_finished_step = message.step

    def _run_head(self, message: StepT, batch: InputT, hidden: torch.Tensor) -> HeadResult:
        del message  # a head that samples needs it
        return self._runner.run_head(batch, hidden)

    def _receive(self, message: StepT) -> torch.Tensor | None:
        previous = self._links.previous
        if previous is None:
            return None
        return pad_rows(previous.receive(message.step, num_tokens(message)))
