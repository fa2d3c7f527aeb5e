"""The actor that holds a node's place in a Ray cluster, and runs the program of `penstock join`."""

import asyncio
import logging
import os

from server.cluster.master_link import ClusterError
from server.cluster.node import Node, NodeSettings
from server.daemon.daemon import log_to_stderr
from server.models.devices import VISIBLE_DEVICES
from workers.contract.curve import ClusterKeys

_log = logging.getLogger("penstock")


class RayNode:
    """The node of this rank. The master's own actor runs nothing, and holds its GPUs."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __repr__(self) -> str:
        """Stand before each line of its log in the driver's."""
        return f"node {self._rank}"

    def take_devices(self) -> str:
        """Let this process see the GPUs that Ray has given it, and no other. They are returned as
        CUDA_VISIBLE_DEVICES names them: how Ray sets that itself depends on its own settings."""
        import ray  # noqa: PLC0415 (an extra)

        gpus: list[str] = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        os.environ[VISIBLE_DEVICES] = ",".join(gpus)
        return os.environ[VISIBLE_DEVICES]

    def run(self, settings: NodeSettings, keys: ClusterKeys) -> str:
        """Be a node until the end. Returns the reason if that is a loss.

        The keys come here, not with the actor: what makes an actor is kept by Ray's GCS."""
        log_to_stderr(settings.log_level)
        try:
            asyncio.run(Node(settings, keys).run())
        except ClusterError as error:
            _log.error("%s", error)
            return str(error)
        _log.info("stopped")
        return ""
