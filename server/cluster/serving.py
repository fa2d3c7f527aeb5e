"""`penstock serve --nodes`: the daemon of the first host, which is the master."""

import asyncio
import logging
import signal
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from server.cluster.address import Address, AddressError
from server.cluster.digests import model_digests
from server.cluster.interface import check_interface, interface_of, own_address
from server.cluster.master import ClusterPort
from server.cluster.messages import Plan
from server.cluster.secret import read_cluster_keys
from server.daemon.daemon import Launch, finished, launching
from server.daemon.run import RunningParts
from server.daemon.supervisor import Hangup
from server.event_loop import in_thread, until_first
from server.models.placement import Cluster, Host
from server.settings.settings import ServeCommand, ServerConfig, SettingsError
from workers.contract.curve import ClusterKeys

_log = logging.getLogger("penstock")


class Gang(Protocol):
    """How the nodes of one daemon come together."""

    async def master(self) -> "Master":
        """The settings of this host as the master. Raises StartError."""
        ...

    async def others(self, master: "Master") -> None:
        """Run while the other nodes have not joined, unless one fails. Raises StartError."""
        ...


class Master(msgspec.Struct, frozen=True):
    """The settings of this host as the master of `nodes` nodes.

    As a `Gang` it waits: others are started by whoever runs `penstock join`.
    """

    address: Address
    interface: str
    keys: ClusterKeys
    nodes: int

    @classmethod
    def of(cls, command: ServeCommand) -> "Master | None":
        """None for one host. Raises SettingsError."""
        settings, names = command.settings, command.setting_names
        of_hosts = ("master", "cluster_secret_file", "interface")
        if settings.ray_address is not None:
            executor = names.inside("executor")
            raise SettingsError(f"{names.of('ray_address')}: is for {executor} ray")
        given = {key: getattr(settings, key) for key in of_hosts}
        if settings.nodes == 1:
            if idle := [names.of(key) for key in of_hosts if given[key] is not None]:
                raise SettingsError(
                    f"{idle[0]}: is for several hosts, and {names.inside('nodes')} is 1"
                )
            return None
        if missing := [key for key in of_hosts[:2] if given[key] is None]:
            needed = " and ".join(names.inside(key) for key in missing)
            raise SettingsError(f"{names.of('nodes')}: {settings.nodes} nodes need {needed}")
        check_one_model(command)
        keys = read_cluster_keys(given["cluster_secret_file"], names.of("cluster_secret_file"))
        try:
            address = Address.of(given["master"])
            interface = given["interface"] or interface_of(own_address(address))
        except AddressError as error:
            raise SettingsError(f"{names.of('master')}: {error}") from None
        check_interface_setting(command)
        return cls(address, interface, keys, settings.nodes)

    async def master(self) -> "Master":
        return self

    async def others(self, master: "Master") -> None:
        await asyncio.get_running_loop().create_future()

    def cluster(self, others: tuple[Host, ...]) -> Cluster:
        return Cluster(
            hosts=(Host.this_one(self.address.host), *others),
            keys=self.keys,
            worker_endpoint=self.address.endpoint(1),
            token_endpoint=self.address.endpoint(2),
        )

    def assumed_cluster(self) -> Cluster:
        """All nodes as this host: `penstock config` asks none."""
        return self.cluster(tuple(Host.this_one(f"node {n}") for n in range(1, self.nodes)))


def check_one_model(command: ServeCommand) -> None:
    """Raises SettingsError for several models."""
    settings, names = command.settings, command.setting_names
    if len(settings.models) > 1:
        raise SettingsError(
            f"{names.of('nodes')}: {settings.nodes} nodes serve one model, not "
            f"{len(settings.models)}"
        )


def check_interface_setting(command: ServeCommand) -> None:
    """Raises SettingsError for an interface that this host does not have."""
    if command.settings.interface is not None:
        try:
            check_interface(command.settings.interface)
        except AddressError as error:
            where = command.setting_names.of("interface")
            raise SettingsError(f"{where}: {error}") from None


def serve_on_nodes(command: ServeCommand, gang: Gang, hangup: Hangup) -> int:
    """Wait for the other nodes, and serve until stopped. Returns the exit code. Raises one of
    START_ERRORS before any process is started."""
    with launching(command) as launch:
        return finished(asyncio.run(_serve(launch, gang, hangup)))


async def _serve(launch: Launch, gang: Gang, hangup: Hangup) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    finding = asyncio.ensure_future(gang.master())
    await until_first(finding, stop.wait())
    if stop.is_set():
        return 0
    master = finding.result()
    host, interface = master.address.host, master.interface
    _log.info("the master's interface between the nodes is %s (%s)", interface, host)
    async with ClusterPort(master.address, master.keys, master.nodes) as port:
        preparing = asyncio.ensure_future(_prepare(launch, master, port))
        await until_first(preparing, stop.wait(), gang.others(master))
        if stop.is_set():
            return 0
        return await launch.supervise(preparing.result(), hangup, port.nodes, interface)


async def _prepare(launch: Launch, master: Master, port: ClusterPort) -> ServerConfig:
    """Decide everything once all nodes are there, and wait until each has the model. Raises one of
    START_ERRORS."""
    nodes = await port.complete()
    cluster = master.cluster(tuple(node.host for node in nodes))

    def decide() -> tuple[ServerConfig, list[Plan]]:
        config = launch.configuration(cluster)
        model, source = config.models[0], launch.command.settings.models[0].model
        digests = model_digests(Path(model.path), model.execution.load_format)
        shared = msgspec.structs.replace(model.execution, cluster_keys=None)
        plan = partial(Plan, execution=shared, source=source, digests=digests)
        return config, [plan(rank) for rank in range(1, master.nodes)]

    config, plans = await RunningParts(nodes).unless_ended(in_thread(decide))
    await port.prepare(plans)
    return config
