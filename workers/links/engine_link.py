"""A worker's socket to its engine core."""

import msgspec
import zmq

from workers.contract.messages import FromWorker, ToWorker


class EngineLink:
    """A DEALER called `<name>-<k>` of the engine core's ROUTER; one message a frame.

    The core writes to `stage-<k>`; a thread that only sends has a link of another name.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        stage: int,
        name: str = "stage",
    ) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, f"{name}-{stage}".encode())
        self._socket.connect(endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToWorker)

    def send(self, message: FromWorker) -> None:
        """Queue a message for the core; never waits for it."""
        self._socket.send(self._encoder.encode(message))

    def receive(self) -> ToWorker:
        """Wait for the core's next message. Raises msgspec.ValidationError if it is none."""
        return self._decoder.decode(self._socket.recv())
