"""Sampled tokens, from the last stage of a pipeline to the slots of the first (over ZMQ)."""

from collections.abc import Iterator

import msgspec
import zmq

from workers.contract.messages import SampledTokens


class TokenSender:
    """The last stage's end."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.connect(endpoint)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, sampled: SampledTokens) -> None:
        """Queue one step's tokens."""
        self._socket.send(self._encoder.encode(sampled))


class TokenReceiver:
    """The first stage's end. Steps arrive in the order in which they were submitted."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.bind(endpoint)
        self._decoder = msgspec.msgpack.Decoder(SampledTokens)
        self._arrived = -1

    def take(self, after: int) -> Iterator[SampledTokens]:
        """What has arrived, oldest first, waiting until step `after` is among it or before it."""
        while self._arrived < after or self._socket.poll(0):
            sampled = self._decoder.decode(self._socket.recv())
            self._arrived = sampled.step
            yield sampled
