"""Sockets between the hosts of a cluster: TCP, encrypted by CURVE (CurveZMQ, ZeroMQ RFC 26).

Two key pairs are derived from the cluster's secret. Whoever listens has one, whoever connects the
other, and no other key is admitted: without a handler of ZAP (ZeroMQ RFC 27) any would be.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

_log = logging.getLogger(__name__)

_Socket = zmq.Socket[bytes]
_DOMAIN = b"penstock"
_LOG_SECONDS = 60.0
_COST, _BLOCK_SIZE = 1 << 14, 8  # 16 MiB and 50 ms a key: a secret that a person made up is guessed


class ClusterKeys(msgspec.Struct, frozen=True):
    """The keys of who listens and of who connects, in Z85 (ZeroMQ RFC 32)."""

    listener: str
    listener_secret: str
    connector: str
    connector_secret: str

    @classmethod
    def of(cls, secret: bytes) -> "ClusterKeys":
        """The keys that every holder of `secret` derives."""
        return cls(*_key_pair(secret, "listener"), *_key_pair(secret, "connector"))

    def secure_listener(self, socket: _Socket, endpoint: str) -> None:
        """Encrypt what `socket` will listen to. Its context must have an `admission`."""
        socket.ipv6 = _is_ipv6(endpoint)
        socket.curve_server = True
        socket.curve_secretkey = self.listener_secret.encode()
        socket.zap_domain = _DOMAIN

    def secure_connector(self, socket: _Socket, endpoint: str) -> None:
        """Encrypt what `socket` will connect to."""
        socket.ipv6 = _is_ipv6(endpoint)
        socket.curve_serverkey = self.listener.encode()
        socket.curve_publickey = self.connector.encode()
        socket.curve_secretkey = self.connector_secret.encode()

    def admission(self, context: zmq.Context[_Socket]) -> ThreadAuthenticator:
        """Start the thread that admits the connectors' key alone to the listeners of `context`. End
        it by `stop()`, before the context ends."""
        authenticator = ThreadAuthenticator(context)
        authenticator.start()
        authenticator.configure_curve_callback(_DOMAIN.decode(), _OneKey(self.connector.encode()))
        return authenticator


class Refusals:
    """Counts connections that a listener refused, and logs their number once a minute at most.

    No event of its monitor stands for all: bytes that are no ZMTP, and keys that are not admitted,
    end a connection silently. So an end counts while fewer handshakes have succeeded than
    connections were made.
    """

    EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED

    def __init__(self, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._endpoint, self._clock = endpoint, clock
        self._unproven = self._count = 0
        self._logged = -_LOG_SECONDS

    def note(self, event: int) -> None:
        match event:
            case zmq.EVENT_ACCEPTED:
                self._unproven += 1
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._unproven -= 1
            case zmq.EVENT_DISCONNECTED if self._unproven:
                self._unproven -= 1
                self._count += 1
                self._log()
            case _:
                pass

    def _log(self) -> None:
        if (now := self._clock()) - self._logged >= _LOG_SECONDS:
            self._logged = now
            _log.warning(
                "connections that %s has refused since its start: %s (of another secret, or none)",
                *(self._endpoint, f"{self._count:,}"),
            )

    def watch(self, socket: _Socket) -> None:
        """Count those of `socket` in a thread, until its context ends."""
        monitor = socket.get_monitor_socket(self.EVENTS)

        def count() -> None:
            with suppress(zmq.ContextTerminated):
                while True:
                    self.note(recv_monitor_message(monitor)["event"])
            monitor.close(0)

        threading.Thread(target=count, name="refusals", daemon=True).start()


class _OneKey:
    """A credentials provider of pyzmq's."""

    def __init__(self, admitted: bytes) -> None:
        self._admitted = admitted

    def callback(self, _domain: str, key: bytes) -> bool:
        return key == self._admitted


def _is_ipv6(endpoint: str) -> bool:
    return endpoint.startswith("tcp://[")


def _key_pair(secret: bytes, label: Literal["listener", "connector"]) -> tuple[str, str]:
    """A public key and its secret one."""
    salt = b"penstock cluster " + label.encode()
    own: Any = hashlib.scrypt(secret, salt=salt, n=_COST, r=_BLOCK_SIZE, p=1, dklen=32)
    encoded: bytes = z85.encode(own)
    return zmq.curve_public(encoded).decode(), encoded.decode()
