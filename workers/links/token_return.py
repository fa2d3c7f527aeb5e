"""Returns sampled tokens from the last stage of a pipeline to the slots of the first, over ZMQ."""

from collections.abc import Iterator

import msgspec
import zmq

from workers.contract.messages import SampledTokens


class TokenSender:
    """The last stage's end of the link."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.connect(endpoint)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, sampled: SampledTokens) -> None:
        """Queue the tokens of one step."""
        self._socket.send(self._encoder.encode(sampled))


class TokenReceiver:
    """The first stage's end of the link. Steps arrive in submit order."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.bind(endpoint)
        self._decoder = msgspec.msgpack.Decoder(SampledTokens)
        self._arrived = -1

    def receive(self, after: int) -> Iterator[SampledTokens]:
        """All tokens that have arrived, oldest first; waits until those of step `after` have."""
        while self._arrived < after or self._socket.poll(0):
            sampled = self._decoder.decode(self._socket.recv())
            self._arrived = sampled.step
            yield sampled
