"""Sockets between processes: ZMQ over ipc, one msgpack value a frame."""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

_RECONNECT_MS = 20
# A plain number: `&` with pyzmq's flags builds an object of their class.
_POLLIN = int(zmq.POLLIN)

Pollable = zmq.Socket[bytes] | int
"""A ZMQ socket or a file descriptor, for the loop's poller."""


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """A message can be received at once. Cheaper than `poll(0)`, which builds a poller."""
    return bool(cast("int", socket.getsockopt(zmq.EVENTS)) & _POLLIN)


def open_router(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """A ROUTER socket that never blocks. Sending to a lost peer raises ZMQError."""
    router = context.socket(zmq.ROUTER)
    router.linger = router.hwm = 0
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    return router


class AsyncDealer:
    """A DEALER socket on an asyncio loop, without zmq.asyncio's cost per message.

    All messages that are sent before the loop polls again travel as one frame, a list: under load
    that spares both ends most wake-ups. `on_message` gets every frame; `on_disconnect` is called
    once, when the peer's process has closed its end (the kernel does that for a killed one too).
    """

    def __init__(
        self,
        endpoint: str,
        on_message: Callable[[bytes], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        self._on_message = on_message
        self._on_disconnect = on_disconnect
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = self._socket.hwm = 0
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(endpoint)
        self._encoder = msgspec.msgpack.Encoder()
        self._unsent: list[msgspec.Raw] = []
        self._closed = False
        self._loop.add_reader(self._socket, self._drain)
        self._loop.add_reader(self._monitor, self._watch)
        # ZMQ's descriptors are edge-triggered, and armed by the first read.
        self._loop.call_soon(self._watch)

    def send(self, message: msgspec.Struct) -> None:
        """Raises what encoding raises: a message that cannot be sent stops no other."""
        self._unsent.append(msgspec.Raw(self._encoder.encode(message)))
        if len(self._unsent) == 1:
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Stop reading and close. Idempotent."""
        if self._closed:
            return
        self._flush()
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_reader(self._monitor)
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

    def _flush(self) -> None:
        if self._closed or not self._unsent:
            return
        self._socket.send(self._encoder.encode(self._unsent), zmq.NOBLOCK, copy=True)
        self._unsent.clear()
        # ZMQ's descriptor is edge-triggered, and a send may swallow the edge of an arrival.
        self._drain()

    def _drain(self) -> None:
        while not self._closed and is_readable(self._socket):
            self._on_message(self._socket.recv(zmq.NOBLOCK))

    def _watch(self) -> None:
        while not self._closed and is_readable(self._monitor):
            recv_monitor_message(self._monitor, zmq.NOBLOCK)
            self._drain()
            self._on_disconnect()


class ClientSocket:
    """The core's ROUTER socket, on which ZMQ gives each client an identity."""

    def __init__(self, endpoint: str, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.arrivals = open_router(context)
        self.arrivals.bind(endpoint)
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self) -> tuple[bytes, bytes] | None:
        if not is_readable(self.arrivals):
            return None
        client, frame = self.arrivals.recv_multipart()
        return client, frame

    def send(self, client: bytes, message: msgspec.Struct) -> bool:
        """Queue one message without blocking. False if the client is gone."""
        try:
            self.arrivals.send_multipart([client, self._encoder.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Send the queued messages, for half a second at most, and close."""
        self.arrivals.close(linger=500)
