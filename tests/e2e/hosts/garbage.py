"""What somebody without the secret sends to a port: bytes, half a handshake, frames, other keys."""

import random
import socket
from contextlib import suppress

import zmq

from workers.contract.curve import ClusterKeys

_GREETING = b"\xff" + bytes(8) + b"\x7f" + bytes([3, 0])
_CURVE = _GREETING + b"CURVE".ljust(20, b"\0") + bytes(32)
_BEGINNINGS = [
    b"",
    _GREETING + b"NULL".ljust(20, b"\0") + bytes(32),
    _CURVE,
    _CURVE + b"\x04\xc8\x05HELLO\x01\0",
]
"""Each state of the peer's parser meets some garbage."""


def send_garbage(address: tuple[str, int], frames: int) -> None:
    """Send `frames` frames of garbage to whatever listens there. Each has a connection of its own,
    which the peer closes."""
    drawn = random.Random(0)
    for _ in range(frames):
        with suppress(OSError), socket.create_connection(address, 10) as connection:
            connection.sendall(drawn.choice(_BEGINNINGS) + _frame(drawn))


def _frame(drawn: random.Random) -> bytes:
    body = drawn.randbytes(drawn.choice([0, 1, 7, 255, 2000]))
    flags = drawn.choice([0, 1, 2, 4, 6, drawn.randrange(256)])
    size = drawn.choice([len(body), drawn.randrange(1 << 62)])
    return bytes([flags]) + (size.to_bytes(8, "big") if flags & 2 else bytes([size % 256])) + body


def send_messages(endpoint: str, messages: int, keys: ClusterKeys | None) -> None:
    """Send ZMQ messages with no encryption, or with that of `keys`."""
    drawn, context = random.Random(0), zmq.Context[zmq.Socket[bytes]]()
    sender = context.socket(zmq.DEALER)
    sender.setsockopt(zmq.LINGER, 500)
    sender.set_hwm(0)
    if keys is not None:
        keys.secure_connector(sender, endpoint)
    sender.connect(endpoint)
    for _ in range(messages):
        with suppress(zmq.Again):  # one that is refused has nobody to send to
            sender.send_multipart([drawn.randbytes(drawn.choice([0, 1, 99]))] * 2, zmq.NOBLOCK)
    sender.close()
    context.term()
