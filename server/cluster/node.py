"""`penstock join`: the program of a node, which runs the workers of its stages."""

import argparse
import asyncio
import logging
import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from server import __version__
from server.cluster.address import Address, AddressError
from server.cluster.digests import first_difference, model_digests
from server.cluster.interface import check_interface, interface_of, own_address
from server.cluster.master_link import ClusterEnded, ClusterError, MasterLink
from server.cluster.messages import Ended, Hello, Plan, Prepared
from server.cluster.secret import read_cluster_keys
from server.daemon.daemon import log_to_stderr
from server.daemon.parts import worker_parts
from server.daemon.run import RunningParts, cause_of, private_folder, running_parts
from server.event_loop import in_thread
from server.models.model_source import ModelSourceError, model_folder
from server.models.placement import Host
from server.settings import defaults
from server.settings.flags import add_flag
from server.settings.setting_types import ClusterAddress, FlagGroup, Positive, Text, declared_flags
from server.settings.settings import Interface, LogLevel, cache_folder, flag_name
from workers.contract.config import ExecutionConfig
from workers.contract.curve import ClusterKeys
from workers.contract.model_config import ModelConfigError

_PAUSE_S = 1.0
"""Between two tries to join."""

_log = logging.getLogger("penstock")


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a node finds its master, and what it is there."""

    master: Annotated[
        ClusterAddress, FlagGroup.HOSTS("the address that --master of `penstock serve` has; needed")
    ]
    node_rank: Annotated[
        Positive | None,
        FlagGroup.HOSTS("this node's place among the nodes, from 1 (default: by arrival)"),
    ] = None
    interface: Interface = None
    model: Annotated[
        Text | None,
        FlagGroup.HOSTS(
            "the model's folder on this host, or its hub id (default: as the master names it)",
            "MODEL",
        ),
    ] = None
    rejoin: Annotated[
        bool,
        FlagGroup.HOSTS(
            "wait for the master, and join again after a loss (default: end with exit code 1)"
        ),
    ] = False
    log_level: Annotated[LogLevel, FlagGroup.LIFE("debug, info, warning or error", "LEVEL")] = (
        defaults.LOG_LEVEL
    )


class JoinSettings(NodeSettings, frozen=True, kw_only=True):
    """The flags of `penstock join`."""

    cluster_secret_file: Annotated[
        Text, FlagGroup.HOSTS("file with the master's secret; needed", "FILE")
    ]


def add_join(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_join, parser=parser)
    for field, flag in declared_flags(JoinSettings):
        add_flag(parser, field, flag)


def _join(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    given = {
        key: each for key, each in vars(options).items() if key in JoinSettings.__struct_fields__
    }
    needed = [each.name for each in msgspec.structs.fields(JoinSettings) if each.required]
    if missing := [flag_name(key) for key in needed if key not in given]:
        parser.error(f"{' and '.join(missing)} must be given")
    settings = JoinSettings(**given)
    log_to_stderr(settings.log_level)
    keys = read_cluster_keys(settings.cluster_secret_file, flag_name("cluster_secret_file"))
    asyncio.run(Node(settings, keys).run())
    _log.info("stopped")
    return 0


class Node:
    """One life of the program."""

    def __init__(self, settings: NodeSettings, keys: ClusterKeys) -> None:
        self._settings, self._keys = settings, keys
        self._said: set[str] = set()

    async def run(self) -> None:
        """Join, and work until the master or a signal ends it. Raises ClusterError at the first
        loss, unless the node is to rejoin."""
        this_task = asyncio.current_task()
        assert this_task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, this_task.cancel)
        try:
            while True:
                try:
                    await self._take_part()
                except ClusterError as error:
                    if not self._settings.rejoin:
                        raise
                    self._say(logging.WARNING, f"{error}; joining again")
                    await asyncio.sleep(_PAUSE_S)
        except (ClusterEnded, asyncio.CancelledError):
            return

    def _say(self, level: int, line: str) -> None:
        """Log a line, but once only until the node has joined."""
        if line not in self._said:
            self._said.add(line)
            _log.log(level, "%s", line)

    async def _take_part(self) -> None:
        """Join once, and work until that ends. Raises ClusterError or ClusterEnded."""
        settings = self._settings
        try:
            master = await in_thread(partial(Address.of, settings.master))
            address = own_address(master)
            interface = settings.interface or interface_of(address)
            check_interface(interface)
        except AddressError as error:
            raise ClusterError(str(error)) from None
        self._say(logging.INFO, f"reaching the master at {master} by {interface} ({address})")
        hello = Hello(__version__, Host.this_one(), settings.node_rank)
        async with MasterLink(master, self._keys, hello) as link:
            await link.welcomed()
            self._said.clear()
            _log.info("joined the master at %s; waiting for its plan", master)
            plan = await link.unless_over(link.planned())
            with private_folder() as (folder, _):
                await self._work(link, plan, _Place(master, interface, folder))

    async def _work(self, link: MasterLink, plan: Plan, place: "_Place") -> None:
        """Run the workers until one ends, or the cluster does."""
        try:
            execution = await link.unless_over(in_thread(partial(self._own_execution, plan, place)))
        except (ModelConfigError, ModelSourceError, _OtherModelError) as error:
            link.send(Ended(f"has not started: {error}", 1))
            raise ClusterError(str(error)) from None
        parts = worker_parts(execution, place.folder / "0", plan.rank, place.interface)
        _log.info("node %d starts %s", plan.rank, ", ".join(part.title for part in parts))
        link.send(Prepared())
        async with running_parts(parts) as running:
            await link.unless_over(_until_one_ends(running))
            cause, code = cause_of(ended := running.ended()), ended[0].exit.result()
            link.send(Ended(f"is lost: the {cause}", code))
            raise ClusterError(f"the {cause}")

    def _own_execution(self, plan: Plan, place: "_Place") -> ExecutionConfig:
        """The plan's, with the files, endpoints and keys that this node has. Raises
        ModelConfigError, ModelSourceError or _OtherModelError."""
        execution, source = plan.execution, self._settings.model or plan.source
        folder = model_folder(source, execution.load_format)
        digests = model_digests(folder, execution.load_format)
        if other := first_difference(digests, plan.digests):
            raise _OtherModelError(
                f"{other} of {folder} is not as the master's {plan.source} has it"
            )
        on_cpu = execution.device_type == "cpu"
        return msgspec.structs.replace(
            execution,
            model=msgspec.structs.replace(execution.model, path=str(folder)),
            worker_endpoint=place.master.endpoint(1),
            token_endpoint=place.master.endpoint(2),
            choices_folder=str(place.folder / "choices" if on_cpu else cache_folder() / "choices"),
            cluster_keys=self._keys,
        )


class _OtherModelError(ValueError):
    """The model on this host is not the master's. One line says which file."""


class _Place(msgspec.Struct, frozen=True):
    """Where a node is: the master's address, its own interface, and its private folder."""

    master: Address
    interface: str
    folder: Path


async def _until_one_ends(running: RunningParts) -> None:
    await asyncio.wait([each.exit for each in running], return_when=asyncio.FIRST_COMPLETED)
