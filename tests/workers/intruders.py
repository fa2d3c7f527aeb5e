"""Who connects to a socket of a cluster without its secret."""

import random
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import zmq

from workers.contract.curve import ClusterKeys

FRAMES = 10_000
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""Of ZMTP 3.1 (ZeroMQ RFC 37)."""

ZMQSocket = zmq.Socket[bytes]


def _send_bytes(endpoint: str, keys: ClusterKeys, *, greeting: bytes = b"") -> None:
    """Over as many connections as it takes: the other end closes each."""
    address, numbers, left = urlsplit(endpoint), random.Random(3), FRAMES
    while left:
        connection = socket.create_connection((address.hostname, address.port or 0))
        with connection, suppress(OSError):
            connection.sendall(greeting)
            while left:
                connection.sendall(numbers.randbytes(numbers.randint(1, 300)))
                left -= 1


def _send_frames(
    endpoint: str,
    keys: ClusterKeys,
    secure: Callable[[ZMQSocket, str], object] = lambda *_: None,
) -> None:
    with connected(endpoint, secure) as dealer:
        for _ in range(FRAMES):
            with suppress(zmq.Again):  # between two attempts to connect
                dealer.send(b"\x92\xa4beat", zmq.NOBLOCK)


@contextmanager
def connected(
    endpoint: str, secure: Callable[[ZMQSocket, str], object], name: bytes = b"stage-0-0"
) -> Iterator[ZMQSocket]:
    """A DEALER called like a stage."""
    context: zmq.Context[ZMQSocket] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.hwm = 0
    dealer.setsockopt(zmq.IDENTITY, name)
    secure(dealer, endpoint)
    monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    dealer.connect(endpoint)
    try:
        monitor.poll(5000)
        yield dealer
    finally:
        dealer.disable_monitor()
        monitor.close(0)
        context.destroy(0)


def _send_with_another_secret(endpoint: str, keys: ClusterKeys) -> None:
    other = ClusterKeys.of(b"another secret of a cluster")
    _send_frames(endpoint, keys, other.secure_connector)


def _send_with_the_listeners_key(endpoint: str, keys: ClusterKeys) -> None:
    """The listener's public key is all that CURVE alone asks for."""

    def secure(dealer: ZMQSocket, _: str) -> None:
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.curve_serverkey = keys.listener.encode()

    _send_frames(endpoint, keys, secure)


INTRUDERS: Mapping[str, Callable[[str, ClusterKeys], None]] = {
    "garbage": _send_bytes,
    "garbage behind a greeting": lambda *at: _send_bytes(*at, greeting=_GREETING),
    "no keys": _send_frames,
    "another secret": _send_with_another_secret,
    "the listener's key alone": _send_with_the_listeners_key,
}
"""Each sends thousands of frames to an endpoint that has keys."""
