"""A stage of a decoder: its sampled tokens return to the first stage, and masks come for them."""

import numpy as np
import torch
import zmq

from workers.contract.messages import DecodeStep, SampledTokens, StepMask
from workers.device.transfer import on_device, to_bytes, to_device
from workers.heads.generate import GenerateResult
from workers.links.activations import Neighbours
from workers.links.engine_link import EngineLink
from workers.links.token_return import TokenReceiver, TokenSender
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
        neighbours: Neighbours,
        results: ResultSender,
        engine: EngineLink,
        context: zmq.Context[zmq.Socket[bytes]],
    ) -> None:
        """`engine` is where masks come from."""
        super().__init__(runner, neighbours, results)
        self._decode_runner, self._engine = runner, engine
        config = runner.config
        self._token_receiver = self._token_sender = None
        if config.num_stages > 1 and runner.first:
            self._token_receiver = TokenReceiver(context, config.token_endpoint)
        if config.num_stages > 1 and runner.last:
            self._token_sender = TokenSender(context, config.token_endpoint)

    def run(self, message: DecodeStep) -> None:
        if self._token_receiver is not None:
            self._store_tokens(self._token_receiver, message.after)
        super().run(message)

    def _run_head(
        self, message: DecodeStep, batch: DecodeInput, hidden: torch.Tensor
    ) -> GenerateResult:
        result = self._decode_runner.run_head(batch, hidden, self._receive_mask(message))
        sampling = batch.requested.sampling
        if self._token_sender is not None and sampling is not None and result.tokens is not None:
            slots, tokens = sampling.slots.tobytes(), to_bytes(result.tokens)
            self._token_sender.send(SampledTokens(message.step, slots, tokens))
        return result

    def _store_tokens(self, receiver: TokenReceiver, after: int) -> None:
        """Keep the tokens that have arrived from the last stage, and wait for those of `after`."""
        for sampled in receiver.receive(after):
            slots = np.frombuffer(bytearray(sampled.slots), np.int32)
            tokens = np.frombuffer(bytearray(sampled.tokens), np.int32)
            columns = to_device([slots, tokens], self._decode_runner.device)
            self._decode_runner.slots.store_last_tokens(*columns)

    def _receive_mask(self, message: DecodeStep) -> TokenMask | None:
        """The tokens that the grammars of masked rows allow, computed while the layers run."""
        if not message.masked:
            return None
        mask = self._engine.receive()
        if not isinstance(mask, StepMask) or mask.step != message.step:
            raise TypeError(f"expected the mask of step {message.step}, not {mask!r}")
        rows = np.flatnonzero(np.frombuffer(message.masked, np.uint8)).astype(np.int32)
        words = np.frombuffer(bytearray(mask.bits), np.int32).reshape(len(rows), -1)
        return TokenMask(rows, on_device(words, self._decode_runner.device))
