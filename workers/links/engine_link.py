"""A worker's socket to its engine core."""

import msgspec
import zmq

from workers.contract.messages import FromWorker, ToWorker


class EngineLink:
    """A DEALER with the identity `<name>-<stage>`, connected to the engine core's ROUTER.

    One frame a message. The core sends to `stage-<stage>`; a thread that only sends has a link with
    another name.
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
        """Wait for the core's next message. Raises msgspec.ValidationError for anything else."""
        return self._decoder.decode(self._socket.recv())
