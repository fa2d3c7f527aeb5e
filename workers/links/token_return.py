"""Returns sampled tokens from the last stage of a pipeline to the slots of the first, over ZMQ.

For stages that share no memory: on CPUs, or where NCCL connects the GPUs. Tokens are sent once they
are on the host. The first stage knows from the steps' messages whose they are.
"""

from collections import deque
from collections.abc import Callable

import msgspec
import numpy as np
import zmq

from workers.contract.messages import DecodeStep, GenerateOutput, SampledTokens, StepOutput
from workers.step.rows import IntArray


class TokenSender:
    """The last stage's end of the link; used by the thread that sends results."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.connect(endpoint)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, output: StepOutput) -> None:
        """Queue the tokens of one step."""
        assert isinstance(output, GenerateOutput), "only generators have a token return"
        if output.tokens:
            self._socket.send(self._encoder.encode(SampledTokens(output.step, output.tokens)))


class TokenReceiver:
    """The first stage's end of the link. Steps arrive in submit order."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        store: Callable[[IntArray, IntArray], None],
    ) -> None:
        """`store` gets slots and their newest tokens, int32[S] each."""
        self._socket = context.socket(zmq.PULL)
        self._socket.bind(endpoint)
        self._decoder = msgspec.msgpack.Decoder(SampledTokens)
        self._store = store
        self._arrived = -1
        self._sampled: deque[tuple[int, IntArray]] = deque()

    def prepare(self, message: DecodeStep) -> None:
        """Before a step: store the tokens that have arrived, and wait until those of the step
        `message.after` have."""
        while self._arrived < message.after or self._socket.poll(0):
            sampled = self._decoder.decode(self._socket.recv())
            self._arrived = sampled.step
            step, slots = self._sampled.popleft()
            assert step == sampled.step, "tokens come in the order of the steps"
            self._store(slots, np.frombuffer(bytearray(sampled.tokens), np.int32))
        samples = np.frombuffer(message.sample, np.bool_)
        if samples.any():
            self._sampled.append((message.step, np.frombuffer(message.slots, np.int32)[samples]))
