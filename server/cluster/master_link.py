"""A node's end of the cluster port: from its hello to the end of the cluster, or of the master."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from server.cluster.address import Address
from server.cluster.messages import (
    BEAT_SECONDS,
    MOST_BYTES,
    SILENCE,
    SILENT_BEATS,
    Beat,
    End,
    Ended,
    FromMaster,
    FromNode,
    Hello,
    NodeRefused,
    Plan,
    Welcome,
)
from server.errors import CommandError
from server.event_loop import lasting_task
from workers.contract.curve import ClusterKeys

HELLO_SECONDS = 10.0
"""How long a node waits for an answer to its hello."""

_RECONNECT_MS = 500
_LINGER_MS = 500

_ResultT = TypeVar("_ResultT")


class ClusterError(CommandError):
    """A node is in no cluster, or no longer. One line says why."""


class ClusterEnded(Exception):  # noqa: N818 (nothing has failed)
    """The master has stopped as it was asked to, and with it the cluster."""


class MasterLink:
    """The connection to the master, used in a `with` block. Its ends and losses are raised by what
    waits in `unless_over`."""

    def __init__(self, address: Address, keys: ClusterKeys, hello: Hello) -> None:
        self._address, self._hello = address, hello
        loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[None] = loop.create_future()
        self._plan: asyncio.Future[Plan] = loop.create_future()
        self._over: asyncio.Future[Exception] = loop.create_future()
        self._silent = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromMaster)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer: Any = zmq.asyncio.Context(self._context).socket(zmq.DEALER)
        self._dealer.linger = _LINGER_MS
        self._dealer.maxmsgsize = MOST_BYTES
        self._dealer.reconnect_ivl = _RECONNECT_MS
        keys.secure_connector(self._dealer, address.endpoint())
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor = self._dealer.get_monitor_socket(events)
        self._dealer.connect(address.endpoint())

    async def __aenter__(self) -> "MasterLink":
        works = {"messages": self._receive(), "beats": self._beat(), "losses": self._watch()}
        self._tasks = [lasting_task(work, f"master link: {what}") for what, work in works.items()]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        self._dealer.disable_monitor()
        self._monitor.close(0)
        self._dealer.close()
        self._context.term()

    def send(self, message: FromNode) -> None:
        self._dealer.send(self._encoder.encode(message))

    async def welcomed(self) -> None:
        """Wait for the answer to the hello. Raises ClusterError."""
        await asyncio.wait(
            [self._welcome, self._over],
            timeout=HELLO_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if self._over.done():
            raise self._over.result()
        if not self._welcome.done():
            raise ClusterError(
                f"no answer from {self._address} in {HELLO_SECONDS:g} s: --cluster-secret-file is "
                "not the master's, or it cannot be reached"
            )

    async def planned(self) -> Plan:
        return await self._plan

    async def unless_over(self, work: Coroutine[object, object, _ResultT]) -> _ResultT:
        """The result of `work`. Raises ClusterError if the master or the cluster is lost before,
        ClusterEnded if the master is stopped. Whoever cancels this has been stopped by a signal."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, self._over], return_when=asyncio.FIRST_COMPLETED)
            if self._over.done():
                raise self._over.result()
            return task.result()
        except asyncio.CancelledError:
            self.send(Ended("is lost: it was stopped by a signal", -signal.SIGTERM))
            raise
        finally:
            task.cancel()

    def _end(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_result(error)

    def _lose(self, how: str) -> None:
        self._end(ClusterError(f"the master ({self._address}) is lost: {how}"))

    async def _receive(self) -> None:
        while True:
            frame: bytes = await self._dealer.recv()
            with suppress(msgspec.DecodeError):  # of another release
                self._on_message(self._decoder.decode(frame))

    def _on_message(self, message: FromMaster) -> None:
        self._silent = 0
        match message:
            case Welcome():
                self._welcome.set_result(None)
            case Plan():
                self._plan.set_result(message)
            case NodeRefused(reason):
                self._end(ClusterError(f"the master ({self._address}) refuses: {reason}"))
            case End(cause=""):
                self._end(ClusterEnded())
            case End(cause):
                self._end(ClusterError(f"the master ({self._address}) ends: {cause}"))
            case Beat():
                pass

    async def _beat(self) -> None:
        await self._welcome
        while True:
            self.send(Beat())
            await asyncio.sleep(BEAT_SECONDS)
            self._silent += 1
            if self._silent > SILENT_BEATS:
                self._lose(SILENCE)

    async def _watch(self) -> None:
        """Say hello to each master that is there, until one has answered."""
        while True:
            event = parse_monitor_message(await self._monitor.recv_multipart())["event"]
            if event == zmq.EVENT_DISCONNECTED:
                if self._welcome.done():
                    self._lose("its connection is closed")
            elif not self._welcome.done():
                self.send(self._hello)
