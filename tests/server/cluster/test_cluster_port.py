"""Nodes and the master: hello, refusals, ranks, plans, losses and ends, over loopback."""

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from server import __version__
from server.cluster import master, master_link
from server.cluster.address import Address
from server.cluster.master import ClusterPort
from server.cluster.master_link import ClusterEnded, ClusterError, MasterLink
from server.cluster.messages import Ended, Hello, Plan, Prepared
from server.daemon.run import StartError
from server.models.placement import Host
from tests.e2e.daemon import free_port
from tests.engine_core.configs import execution_config
from workers.contract.curve import ClusterKeys

KEYS = ClusterKeys.of(b"the secret of this test")
HELLO = Hello(__version__, Host("", 4, ()), None)


class Nodes:
    """A cluster port, and the links of nodes to it."""

    def __init__(self, stack: AsyncExitStack, nodes: int) -> None:
        self._stack = stack
        self.address = Address("127.0.0.1", free_port())
        self.port = ClusterPort(self.address, KEYS, nodes)

    async def join(self, rank: int | None = None, **changes: Any) -> MasterLink:
        """A node that has been welcomed."""
        link = self.link(msgspec.structs.replace(HELLO, rank=rank, **changes))
        await self._stack.enter_async_context(link)
        await link.welcomed()
        return link

    def link(self, hello: Hello = HELLO, keys: ClusterKeys = KEYS) -> MasterLink:
        return MasterLink(self.address, keys, hello)

    async def plan(self) -> None:
        """Give all nodes their plans, once they are there."""
        await self.port.complete()
        execution = execution_config(name="m")
        plans = [Plan(1 + n, execution, "model", {}) for n in range(len(self.port.nodes))]
        await self.port.prepare(plans)


@asynccontextmanager
async def cluster(nodes: int = 2) -> AsyncGenerator[Nodes]:
    async with AsyncExitStack() as stack:
        found = Nodes(stack, nodes)
        await stack.enter_async_context(found.port)
        yield found


async def end_of(link: MasterLink) -> Exception:
    """How the cluster ends for a node."""
    with pytest.raises((ClusterError, ClusterEnded)) as caught:
        await link.unless_over(asyncio.sleep(60))
    return caught.value


async def rank_of(link: MasterLink) -> int:
    plan = await link.unless_over(link.planned())
    link.send(Prepared())
    return plan.rank


async def test_ranks_are_given_by_arrival_around_those_that_are_asked_for() -> None:
    async with cluster(5) as nodes:
        links = [await nodes.join(rank) for rank in (None, 3, None, 1)]
        _, *ranks = await asyncio.gather(nodes.plan(), *map(rank_of, links))
        assert ranks == [2, 3, 4, 1]
        titles = [node.part.title for node in nodes.port.nodes]
        assert titles == [f"node {rank} (127.0.0.1)" for rank in (1, 2, 3, 4)]
        hosts = [node.host for node in nodes.port.nodes]
        assert hosts == [Host("127.0.0.1", 4, ())] * 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": "9.9"}, f"it is penstock 9.9, and the master {__version__}"),
        ({"rank": 2}, "--node-rank 2 is that of 127.0.0.1"),
        ({"rank": 4}, "--node-rank 4 is not 1 to 3"),
        ({"rank": 0}, "--node-rank 0 is not 1 to 3"),
    ],
)
async def test_a_node_that_is_refused(
    changes: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(4) as nodes:
        await nodes.join(2)
        with pytest.raises(ClusterError, match=f"refuses: {reason}"):
            await nodes.join(**changes)
        assert caplog.messages[-1] == f"a node at 127.0.0.1 is refused: {reason}"
        await nodes.join()  # the next one is not


async def test_nobody_joins_a_cluster_that_is_complete() -> None:
    async with cluster() as nodes:
        await nodes.join()
        with pytest.raises(ClusterError, match="refuses: all 2 nodes are there"):
            await nodes.join()


async def test_the_master_counts_the_nodes_that_are_missing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with cluster(3) as nodes:
        async with nodes.link() as leaving:
            await leaving.welcomed()
        await asyncio.wait_for(until(lambda: "lost" in caplog.text), 30)
        await asyncio.gather(*(nodes.join() for _ in range(2)))
    at = f"at {nodes.address}"
    joined = "a node at 127.0.0.1 has joined, with 4 cores"
    assert caplog.messages == [
        f"waiting for 2 more nodes {at}",
        joined,
        f"waiting for 1 more node {at}",
        "the node at 127.0.0.1 is lost: its connection is closed",
        f"waiting for 2 more nodes {at}",
        joined,
        f"waiting for 1 more node {at}",
        joined,
    ]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 (a log has no event)
        await asyncio.sleep(0.01)


async def test_another_secret_is_no_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_link, "HELLO_SECONDS", 1.0)
    async with cluster() as nodes:
        async with nodes.link(keys=ClusterKeys.of(b"some other secret")) as link:
            with pytest.raises(ClusterError) as caught:
                await link.welcomed()
        assert str(caught.value) == (
            f"no answer from {nodes.address} in 1 s: --cluster-secret-file is not the master's, "
            "or it cannot be reached"
        )
        refused = [
            line
            for line in caplog.messages
            if "has refused since its start: 1 (of another secret" in line
        ]
        assert len(refused) == 1
        await nodes.join()


async def test_a_node_may_come_first() -> None:
    address = Address("127.0.0.1", free_port())
    async with MasterLink(address, KEYS, HELLO) as link:
        await asyncio.sleep(0.2)
        async with ClusterPort(address, KEYS, 2):
            await link.welcomed()


@pytest.mark.parametrize(
    ("cause", "kind", "line"),
    [
        ("", ClusterEnded, ""),
        ("the worker 0 of m was killed by SIGKILL", ClusterError, "ends: the worker 0 of m was"),
    ],
)
async def test_a_node_is_ended(cause: str, kind: type[Exception], line: str) -> None:
    async with cluster() as nodes:
        link = await nodes.join()
        (node,) = nodes.port.nodes
        node.cause = cause
        node.signal(signal.SIGTERM)
        end = await end_of(link)
        assert type(end) is kind
        assert line in str(end)


async def test_a_start_that_fails_ends_the_nodes_with_its_reason() -> None:
    async with AsyncExitStack() as links:
        nodes = Nodes(links, 2)
        with suppress(StartError):
            async with nodes.port:
                link = await nodes.join()
                raise StartError("--device: no")
        assert str(await end_of(link)) == f"the master ({nodes.address}) ends: --device: no"


async def test_what_a_node_says_of_its_end_is_its_end() -> None:
    async with cluster() as nodes:
        link = await nodes.join()
        (node,) = nodes.port.nodes
        link.send(Ended("is lost: the worker 1 of m was killed by SIGKILL", -9))
        assert await asyncio.wait_for(node.exit, 30) == -9
        assert node.end() == "is lost: the worker 1 of m was killed by SIGKILL"


async def test_a_node_that_cannot_start_ends_the_start() -> None:
    async with cluster() as nodes:
        link = await nodes.join()
        planning = asyncio.create_task(nodes.plan())
        await link.unless_over(link.planned())
        link.send(Ended("has not started: config.json is another", 1))
        with pytest.raises(StartError, match=r"the node 1 \(127.0.0.1\) has not started: config"):
            await planning


async def test_a_node_that_falls_silent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection stands."""
    monkeypatch.setattr(master, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(master_link, "BEAT_SECONDS", 60.0)
    async with cluster() as nodes:
        await nodes.join()
        (node,) = nodes.port.nodes
        assert await asyncio.wait_for(node.exit, 30) == -signal.SIGKILL
        assert node.end() == "is lost: nothing heard for 3 s"


async def test_a_master_that_falls_silent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_link, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(master, "BEAT_SECONDS", 60.0)
    async with cluster() as nodes:
        end = await end_of(await nodes.join())
        assert str(end) == f"the master ({nodes.address}) is lost: nothing heard for 3 s"


async def test_ends_that_beat_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (master, master_link):
        monkeypatch.setattr(end, "BEAT_SECONDS", 0.1)
    async with cluster() as nodes:
        link = await nodes.join()
        await link.unless_over(asyncio.sleep(2))
        assert not nodes.port.nodes[0].exit.done()


async def test_a_master_that_is_gone_is_lost_at_once() -> None:
    async with AsyncExitStack() as links:
        nodes = Nodes(links, 2)
        async with nodes.port:
            link = await nodes.join()
            nodes.port.nodes.clear()  # it is killed: nobody is told
        end = await end_of(link)
        assert str(end) == f"the master ({nodes.address}) is lost: its connection is closed"


async def test_a_port_that_is_taken() -> None:
    async with cluster() as nodes:
        with pytest.raises(StartError, match=f"cannot listen on {nodes.address}: Address already"):
            ClusterPort(nodes.address, KEYS, 2)
