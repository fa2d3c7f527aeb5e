"""What somebody without the secret sends to a port: bytes, half a handshake, frames, other keys."""

import os
import random
import socket
from collections.abc import Iterable
from contextlib import suppress

import zmq

from workers.contract.curve import ClusterKeys

_GREETING = b"\xff" + bytes(8) + b"\x7f" + bytes([3, 0])
FRAMES_A_CONNECTION = 50


def send_garbage(address: tuple[str, int], frames: int) -> None:
    """Send `frames` frames of garbage to whatever listens there."""
    for connection in range(frames // FRAMES_A_CONNECTION):
        _send_all(address, _garbage(random.Random(connection)))


def _garbage(drawn: random.Random) -> list[bytes]:
    """The frames of one connection: all begin differently, so that each state of the peer's parser
    meets some."""
    beginning = drawn.choice([
        b"", _GREETING + b"NULL".ljust(20, b"\0") + bytes(32),
        _GREETING + b"CURVE".ljust(20, b"\0") + bytes(32),
        _GREETING + b"CURVE".ljust(20, b"\0") + bytes(32) + b"\x04\xc8\x05HELLO" + bytes([1, 0]),
    ])  # fmt: skip
    frames = [_frame(drawn) for _ in range(FRAMES_A_CONNECTION)]
    return [beginning + frames[0], *frames[1:]]


def _frame(drawn: random.Random) -> bytes:
    body = drawn.randbytes(drawn.choice([0, 1, 7, 255, 2000]))
    flags = drawn.choice([0, 1, 2, 4, 6, drawn.randrange(256)])
    size = drawn.choice([len(body), drawn.randrange(1 << 62)])
    return bytes([flags]) + (size.to_bytes(8, "big") if flags & 2 else bytes([size % 256])) + body


def _send_all(address: tuple[str, int], frames: Iterable[bytes]) -> None:
    with suppress(OSError), socket.create_connection(address, 10) as connection:
        for frame in frames:
            connection.sendall(frame)


def send_messages(endpoint: str, messages: int, keys: ClusterKeys | None) -> None:
    """Send ZMQ messages with no encryption, or with that of `keys`."""
    context = zmq.Context[zmq.Socket[bytes]]()
    sender = context.socket(zmq.DEALER)
    sender.setsockopt(zmq.LINGER, 500)
    sender.set_hwm(0)
    if keys is not None:
        keys.secure_connector(sender)
    sender.connect(endpoint)
    for _ in range(messages):
        sender.send_multipart([os.urandom(random.choice([0, 1, 100])) for _ in range(2)])
    sender.close()
    context.term()
