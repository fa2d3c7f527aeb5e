"""The master's end of the cluster port: nodes say hello, get their plan, and beat."""

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from server import __version__
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
    Prepared,
    Welcome,
)
from server.daemon.parts import Part
from server.daemon.run import RunningParts, StartError
from server.errors import one_line
from server.event_loop import lasting_task
from workers.contract.curve import ClusterKeys, Refusals

_KILLED = -signal.SIGKILL
_END_S = 1.0
"""For nodes to say that everything on them has ended."""

_log = logging.getLogger("penstock")


class RemoteNode:
    """A node that has joined, as a part of the daemon that runs on another host.

    See `server.daemon.parts.Supervised`.
    """

    def __init__(self, hello: Hello, address: str, send: Callable[[FromMaster], None]) -> None:
        self.host = msgspec.structs.replace(hello.host, address=address)
        self.asked_rank = hello.rank
        self.part = Part(title=f"node at {address}", role="node", command=[], environment={})
        self.exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.prepared = asyncio.Event()
        self.cause = ""
        self._send, self._how = send, ""
        self._silent = 0

    def begin(self, plan: Plan) -> None:
        """Give it its rank, by which it is called from then on."""
        title, model = f"node {plan.rank} ({self.host.address})", plan.execution.name
        self.part = msgspec.structs.replace(self.part, title=title, model=model, number=plan.rank)
        self._send(plan)

    def signal(self, number: signal.Signals) -> None:
        """Have it end everything, whatever the signal. It fails if there is a `cause`."""
        if not self.exit.done():
            self._send(End(self.cause))

    def end(self) -> str:
        return self._how

    def heard(self) -> None:
        self._silent = 0

    def beat(self) -> None:
        """Send a beat, and count those that it owes."""
        self._silent += 1
        if self._silent > SILENT_BEATS:
            self.lose(f"is lost: {SILENCE}")
        elif not self.exit.done():
            self._send(Beat())

    def lose(self, how: str, code: int = _KILLED) -> None:
        if not self.exit.done():
            self._how = how
            self.exit.set_result(code)


class ClusterPort:
    """The socket to which nodes connect, for one life of the daemon. Used in a `with` block, which
    ends all nodes. Raises StartError if it cannot listen."""

    def __init__(self, address: Address, keys: ClusterKeys, nodes: int) -> None:
        """`nodes` counts this host, too."""
        self.nodes: list[RemoteNode] = []
        self._address, self._others = address, nodes - 1
        self._complete = asyncio.Event()
        self._by_identity: dict[bytes, RemoteNode] = {}
        self._identities: dict[int, bytes] = {}  # by file descriptor
        self._closed: list[bytes] = []
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(FromNode)
        self._refusals = Refusals(address.endpoint())
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._admission = keys.admission(self._context)
        self._router: Any = zmq.asyncio.Context(self._context).socket(zmq.ROUTER)
        self._router.maxmsgsize = MOST_BYTES
        keys.secure_listener(self._router, address.endpoint())
        self._monitor = self._router.get_monitor_socket(Refusals.EVENTS)
        try:
            self._router.bind(address.endpoint())
        except zmq.ZMQError as error:
            self._close()
            raise StartError(f"cannot listen on {address}: {error.strerror}") from None

    async def __aenter__(self) -> "ClusterPort":
        works = {"messages": self._read(), "beats": self._beat()}
        self._tasks = [lasting_task(work, f"cluster port: {what}") for what, work in works.items()]
        self._log_missing()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            node.cause = node.cause or (one_line(error) if error else "")
            node.signal(signal.SIGTERM)
        if self.nodes:
            await asyncio.wait([node.exit for node in self.nodes], timeout=_END_S)
        for task in self._tasks:
            task.cancel()
        self._close()

    async def complete(self) -> list[RemoteNode]:
        """All nodes but this one by rank, once they are there. Nobody else may join from then
        on."""
        await self._complete.wait()
        free = [node for node in self.nodes if node.asked_rank is None]
        by_rank = {node.asked_rank: node for node in self.nodes if node.asked_rank is not None}
        ranks = range(1, self._others + 1)
        self.nodes = [by_rank[rank] if rank in by_rank else free.pop(0) for rank in ranks]
        return self.nodes

    async def prepare(self, plans: list[Plan]) -> None:
        """Give each node its plan, and wait until all have the model. Raises StartError."""
        for node, plan in zip(self.nodes, plans, strict=True):
            node.begin(plan)

        async def all_prepared() -> None:
            for node in self.nodes:
                await node.prepared.wait()

        await RunningParts(self.nodes).unless_ended(all_prepared())

    def _close(self) -> None:
        self._admission.stop()
        self._router.disable_monitor()
        self._monitor.close(0)
        self._router.close(0 if not self.nodes else round(_END_S * 1e3))
        self._context.term()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for node in list(self.nodes):
                node.beat()

    async def _read(self) -> None:
        poller: Any = zmq.asyncio.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        while True:
            await poller.poll()
            await self._note_connections()
            while await self._router.poll(0):
                identity, frame = await self._router.recv_multipart(copy=False)
                with suppress(msgspec.DecodeError):  # of another release, or no node
                    await self._hear(identity.bytes, frame, self._decoder.decode(frame.buffer))
            # Only now: what a node has said before its end says more.
            for identity in self._closed:
                if node := self._by_identity.get(identity):
                    node.lose("is lost: its connection is closed")
            self._closed.clear()

    async def _note_connections(self) -> None:
        """Note those that are closed, and those that were refused."""
        while await self._monitor.poll(0):
            event = parse_monitor_message(await self._monitor.recv_multipart())
            self._refusals.note(event["event"])
            if event["event"] == zmq.EVENT_DISCONNECTED and event["value"] in self._identities:
                self._closed.append(self._identities.pop(event["value"]))

    async def _hear(self, sender: bytes, frame: zmq.Frame, message: FromNode) -> None:
        descriptor = frame.get(zmq.SRCFD)
        if self._identities.get(descriptor) != sender:
            await self._note_connections()  # one that is closed may have had the same descriptor
            self._identities[descriptor] = sender
        if isinstance(message, Hello):
            address = str(frame.get("Peer-Address")).removeprefix("::ffff:")
            self._on_hello(message, sender, address)
        elif node := self._by_identity.get(sender):
            node.heard()
            self._on_message(node, message)

    def _on_message(self, node: RemoteNode, message: FromNode) -> None:
        if isinstance(message, Prepared):
            node.prepared.set()
        elif isinstance(message, Ended):
            node.lose(message.how, message.code)

    def _on_hello(self, hello: Hello, sender: bytes, address: str) -> None:
        if sender in self._by_identity:
            return
        if reason := self._objection(hello):
            _log.warning("a node at %s is refused: %s", address, reason)
            self._send(sender, NodeRefused(reason))
            return

        def send(message: FromMaster) -> None:
            self._send(sender, message)

        node = self._by_identity[sender] = RemoteNode(hello, address, send)
        node.exit.add_done_callback(lambda _: self._on_exit(sender, node))
        self.nodes.append(node)
        send(Welcome())
        _log.info("a node at %s has joined, with %s", address, node.host.described())
        self._log_missing()

    def _objection(self, hello: Hello) -> str | None:
        """The reason why a node may not join, if there is one."""
        rank, last = hello.rank, self._others
        if hello.version != __version__:
            return f"it is penstock {hello.version}, and the master {__version__}"
        if self._complete.is_set():
            return f"all {self._others + 1} nodes are there"
        if rank is not None and not 1 <= rank <= last:
            return f"--node-rank {rank} is not 1 to {last}"
        taken = [node for node in self.nodes if rank is not None and node.asked_rank == rank]
        return f"--node-rank {rank} is that of {taken[0].host.address}" if taken else None

    def _on_exit(self, sender: bytes, node: RemoteNode) -> None:
        """Forget a node that goes before all are there."""
        del self._by_identity[sender]
        if not self._complete.is_set():
            self.nodes.remove(node)
            _log.warning("the %s %s", node.part.title, node.end())
            self._log_missing()

    def _log_missing(self) -> None:
        missing = self._others - len(self.nodes)
        if missing:
            what = "node" if missing == 1 else "nodes"
            _log.info("waiting for %d more %s at %s", missing, what, self._address)
        else:
            self._complete.set()

    def _send(self, receiver: bytes, message: FromMaster) -> None:
        """Queue a message. One to a node that is gone is dropped."""
        self._router.send_multipart([receiver, self._encoder.encode(message)])
