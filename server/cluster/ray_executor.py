"""`penstock serve --executor ray`: the other nodes are actors of a Ray cluster.

Ray finds the hosts, starts the nodes and shows their logs. No step and no tensor passes through it.
"""

import asyncio
import os
import secrets
import socket
import sys
import time
from contextlib import closing
from importlib.metadata import PackageNotFoundError, distribution, version
from logging import getLogger
from typing import Any

from server.cluster.address import Address, AddressError
from server.cluster.interface import interface_of
from server.cluster.node import NodeSettings
from server.cluster.ray_node import RayNode
from server.cluster.serving import Master, check_interface_setting, check_one_model, serve_on_nodes
from server.daemon.run import StartError
from server.daemon.supervisor import Hangup
from server.errors import one_line
from server.event_loop import all_of, in_thread
from server.models.devices import VISIBLE_DEVICES
from server.models.model_source import SetupError
from server.models.placement import Cluster, Host, stages_by_node
from server.settings.settings import ServeCommand, SettingsError
from workers.contract.curve import ClusterKeys

_REACHED_S, _CONNECTED_S = 5.0, 60.0
"""For a connection to the cluster's port, and for Ray to have joined it."""

_POLL_S, _FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0, 60.0

_log = getLogger("penstock")


def serve_on_ray(command: ServeCommand, hangup: Hangup) -> int:
    """Start the other nodes, and serve until stopped. Returns the exit code. Raises one of
    START_ERRORS before any process of this host is started."""
    with closing(RayNodes(command)) as nodes:
        return serve_on_nodes(command, nodes, hangup)


def assumed_ray_cluster(command: ServeCommand) -> Cluster:
    """All nodes as this host, with as many GPUs as they have stages: `penstock config` asks none.
    Raises SettingsError."""
    stages = _checked_stages(command)
    host, unknown = Host.this_one(), "tcp://????:????"
    return Cluster(
        hosts=tuple(
            Host(f"node {rank}", host.cores, host.gpu_memory[:own])
            for rank, own in enumerate(stages)
        ),
        keys=ClusterKeys.of(secrets.token_bytes()),
        worker_endpoint=unknown,
        token_endpoint=unknown,
    )


def _checked_stages(command: ServeCommand) -> list[int]:
    """The number of stages of each node. Raises SettingsError for settings that do not fit."""
    settings, names = command.settings, command.setting_names
    if settings.nodes == 1:
        raise SettingsError(
            f"{names.of('executor')}: ray is for several hosts, and {names.inside('nodes')} is 1"
        )
    for key in ("master", "cluster_secret_file"):
        if getattr(settings, key) is not None:
            executor = names.inside("executor")
            raise SettingsError(
                f"{names.of(key)}: with {executor} ray the master and the secret are found by "
                "themselves"
            )
    check_one_model(command)
    check_interface_setting(command)
    model = settings.models[0]
    try:
        stages = stages_by_node(model.device, model.pipeline_stages, settings.nodes)
    except SetupError as error:
        raise SettingsError(f"{names.of(error.key, 0)}: {error.reason}") from None
    try:
        distribution("ray")
    except PackageNotFoundError:
        raise SettingsError(
            f"{names.of('executor')}: pip install 'penstock[ray]' for ray"
        ) from None
    return stages


class RayNodes:
    """The nodes of one daemon, in a placement group of its own. See `server.cluster.serving.Gang`.

    Ray ends all that it has of them with its driver, which is this process.
    """

    def __init__(self, command: ServeCommand) -> None:
        """Raises SettingsError."""
        self._settings, self._names = command.settings, command.setting_names
        self._stages = _checked_stages(command)
        self._actors: list[Any] = []
        self._hosts: list[str] = []
        # Ray takes lines of two nodes that differ in their numbers alone for the same.
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")
        # It colours its prefixes in files, too.
        os.environ.setdefault("RAY_COLOR_PREFIX", str(int(sys.stderr.isatty())))
        import ray  # noqa: PLC0415 (an extra, which reads these variables)

        self._ray: Any = ray

    async def master(self) -> Master:
        """Join the Ray cluster, and take a place in it for each node. Raises StartError."""
        await self._connect()
        kind = "GPU" if self._on_gpus() else "CPU"
        group = await self._placed(kind)
        self._actors = [self._actor(group, rank, kind) for rank in range(self._settings.nodes)]
        seen = [self._result(rank, a.take_devices) for rank, a in enumerate(self._actors)]
        os.environ[VISIBLE_DEVICES] = (await all_of(seen, StartError))[0]
        host = self._hosts[0]
        try:
            interface = self._settings.interface or interface_of(host)
            address = Address.free(host)
        except AddressError as error:
            raise StartError(str(error)) from None
        keys = await in_thread(lambda: ClusterKeys.of(secrets.token_bytes()))
        return Master(address, interface, keys, self._settings.nodes)

    async def others(self, master: Master) -> None:
        """Run the other nodes. Raises StartError when the first one ends."""

        async def run(rank: int) -> None:
            settings = NodeSettings(
                master=str(master.address),
                node_rank=rank,
                interface=self._settings.interface,
                log_level=self._settings.log_level,
            )
            reason = await self._result(rank, self._actors[rank].run, settings, master.keys)
            raise StartError(f"the {self._title(rank)} has not started: {reason}")

        await all_of(map(run, range(1, self._settings.nodes)), StartError)

    def close(self) -> None:
        """Leave the cluster, which frees the nodes' places."""
        self._ray.shutdown()

    async def _connect(self) -> None:
        from ray._private.services import canonicalize_bootstrap_address_or_die  # noqa: PLC0415

        def connect() -> None:
            """Ray itself would try for over a minute, in which no signal reaches it."""
            address = canonicalize_bootstrap_address_or_die(self._settings.ray_address or "auto")
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _REACHED_S).close()
            _log.info("joining the Ray cluster at %s", address)
            self._ray.init(address, logging_level="error")

        try:
            async with asyncio.timeout(_CONNECTED_S):
                await in_thread(connect)
        except Exception as error:
            where = self._settings.ray_address or os.environ.get("RAY_ADDRESS")
            at = f"at {where}" if where else "on this host"
            reason = getattr(error, "strerror", None) or one_line(error).partition(". ")[0]
            setting = self._names.of("ray_address")
            raise StartError(f"{setting}: no Ray cluster {at}: {reason or 'no answer'}") from None

    def _on_gpus(self) -> bool:
        device = self._settings.models[0].device
        if device != "auto":
            return device == "cuda"
        usable = not version("torch").endswith("+cpu")
        return usable and self._ray.cluster_resources().get("GPU", 0) > 0

    async def _placed(self, kind: str) -> Any:
        """A placement group with a bundle for each node, the first on this host. Raises StartError
        if Ray has no room for so long as a start may take."""
        own = self._ray.get_runtime_context().get_node_id()
        here: list[dict[str, str]] = [{"ray.io/node-id": own}]
        group = self._ray.util.placement_group(
            [{kind: stages} for stages in self._stages],
            strategy="STRICT_SPREAD",
            bundle_label_selector=here + [{}] * (self._settings.nodes - 1),
        )
        began, wait = time.monotonic(), _FIRST_WAIT_S
        limit, told_at = self._settings.startup_timeout, wait
        while (table := self._ray.util.placement_group_table(group))["state"] != "CREATED":
            await asyncio.sleep(_POLL_S)
            waited = time.monotonic() - began
            if waited > limit:
                timeout = self._names.inside("startup_timeout")
                lack = self._lack(kind, own)
                raise StartError(f"Ray has no room after {limit:g} s ({timeout}): {lack}")
            if waited > told_at:
                _log.info("waiting for room in Ray: %s", self._lack(kind, own))
                wait = min(2 * wait, _LONGEST_WAIT_S)
                told_at += wait
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in self._ray.nodes()}
        ids = table["bundles_to_node_id"]
        self._hosts = [addresses[ids[rank]] for rank in range(self._settings.nodes)]
        _log.info("Ray's hosts by rank: %s", ", ".join(self._hosts))
        return group

    def _lack(self, kind: str, own: str) -> str:
        """The needed part of the cluster, and what there is."""
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        there = ", ".join(
            f"{node['Resources'].get(kind, 0):g} on {node['NodeManagerAddress']}"
            + (" (this host)" if node["NodeID"] == own else "")
            for node in sorted(nodes, key=lambda node: node["NodeID"] != own)
        )
        needed = " and ".join(map(str, self._stages))
        free = self._ray.available_resources().get(kind, 0)
        return (
            f"needed are {needed} {kind}s on {len(self._stages)} nodes, the first of them this "
            f"host; the cluster has {there}, and {free:g} of all are free"
        )

    def _actor(self, group: Any, rank: int, kind: str) -> Any:
        strategies = self._ray.util.scheduling_strategies
        options: dict[str, Any] = {
            "num_cpus": 0,
            "num_gpus": self._stages[rank] if kind == "GPU" else 0,
            "max_restarts": 0,
            "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(group, rank),
        }
        return self._ray.remote(**options)(RayNode).remote(rank)

    async def _result(self, rank: int, method: Any, *arguments: object) -> str:
        """The result of a method of an actor. Raises StartError if that is lost."""
        try:
            return await asyncio.wrap_future(method.remote(*arguments).future())
        except self._ray.exceptions.RayError as error:
            raise StartError(f"the {self._title(rank)} is lost: {_cause(error)}") from None

    def _title(self, rank: int) -> str:
        return f"node {rank} ({self._hosts[rank]})"


def _cause(error: Exception) -> str:
    """The line of an error of Ray's that says why: the last of what an actor raised, which quotes
    its call, otherwise the first."""
    lines = str(error).strip().splitlines()
    return one_line(lines[-1 if "ray::" in str(error) else 0])
