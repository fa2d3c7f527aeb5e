"""Takes steps from the engine core in order, and runs one stage's share of each."""

from typing import Generic

import torch

from workers.contract.messages import DecodeStep, StepInput, StepMask
from workers.layers.linear import pad_rows
from workers.links.step_inbox import StepInbox
from workers.links.token_return import TokenReceiver
from workers.links.transport import Links
from workers.stage.model_runner import InputT, ModelRunner, StepT, num_tokens
from workers.stage.result_sender import ResultSender


class Stage(Generic[StepT, InputT]):
    """A stage that is ready. `last_finished_step` is the newest step of which it has done its
    share, -1 before the first; heartbeats report it to the engine core."""

    def __init__(
        self,
        runner: ModelRunner[StepT, InputT],
        links: Links,
        results: ResultSender,
        inbox: StepInbox,
        tokens: TokenReceiver | None = None,
    ) -> None:
        """`inbox` is where masks come from; `tokens` is for a first stage that shares no memory
        with the last."""
        self.last_finished_step = -1
        self._runner = runner
        self._links = links
        self._results = results
        self._timer = results.timer
        self._inbox, self._tokens = inbox, tokens

    def run(self, message: StepT) -> None:
        """Run one step, or queue it on the device, and report it."""
        batch = self._runner.prepare(message)
        self._timer.begin()
        if isinstance(message, DecodeStep):
            self._receive_tokens(message)
        hidden = self._receive(message)
        self._timer.arrived()
        hidden = self._runner.forward(batch, hidden)
        result = None
        if self._links.next is None:
            result = self._runner.run_head(batch, hidden, self._receive_mask(message))
            if self._links.tokens is not None:
                self._links.tokens.announce(message.step)
            self._timer.computed()
        else:
            self._timer.computed()
            reused = self._runner.reuses_states(batch)
            self._links.next.send(message.step, hidden[: num_tokens(message)], reused=reused)
        self._results.send(message.step, result)
        self.last_finished_step = message.step

    def _receive_tokens(self, message: DecodeStep) -> None:
        """Wait for the sampled tokens with which rows of the first stage go on."""
        if self._tokens is not None:
            self._tokens.prepare(message)
        elif self._links.tokens is not None and self._runner.first:
            self._links.tokens.wait_for(message.after)

    def _receive(self, message: StepT) -> torch.Tensor | None:
        previous = self._links.previous
        if previous is None:
            return None
        return pad_rows(previous.receive(message.step, num_tokens(message)))

    def _receive_mask(self, message: StepInput) -> StepMask | None:
        """The tokens that the grammars of masked rows allow, computed while the layers run."""
        if not isinstance(message, DecodeStep) or not message.masked:
            return None
        with self._timer.pausing():
            return self._inbox.take_mask(message.step)
