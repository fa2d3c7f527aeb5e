"""A stage of a decoder: sampled tokens return to the first stage, and masks come for them."""

import torch

from workers.contract.messages import DecodeStep
from workers.heads.base import HeadResult
from workers.links.step_inbox import StepInbox
from workers.links.token_return import TokenReceiver
from workers.links.transport import Links
from workers.sampling.adjustments import TokenMask
from workers.stage.decode_input import DecodeInput
from workers.stage.decode_runner import DecodeRunner
from workers.stage.result_sender import ResultSender
from workers.stage.stage import Stage


class DecodeStage(Stage[DecodeStep, DecodeInput]):
    """See `Stage`."""

    def __init__(
        self,
        runner: DecodeRunner,
        links: Links,
        results: ResultSender,
        inbox: StepInbox,
        tokens: TokenReceiver | None = None,
    ) -> None:
        """`inbox` is where masks come from; `tokens` is for a first stage that shares no memory
        with the last."""
        super().__init__(runner, links, results)
        self._decode_runner, self._inbox, self._tokens = runner, inbox, tokens

    def _receive(self, message: DecodeStep) -> torch.Tensor | None:
        if self._tokens is not None:
            self._tokens.prepare(message)
        elif self._links.tokens is not None and self._decode_runner.first:
            self._links.tokens.wait_for(message.after)
        return super()._receive(message)

    def _run_head(
        self, message: DecodeStep, batch: DecodeInput, hidden: torch.Tensor
    ) -> HeadResult:
        result = self._decode_runner.run_head(batch, hidden, self._receive_mask(message))
        if self._links.tokens is not None:
            self._links.tokens.announce(message.step)
        return result

    def _receive_mask(self, message: DecodeStep) -> TokenMask | None:
        """The tokens that the grammars of masked rows allow, computed while the layers run."""
        if not message.masked:
            return None
        with self._timer.pausing():
            bits = self._inbox.take_mask(message.step).bits
        return TokenMask.from_bytes(message.masked, bits, self._decode_runner.device)
