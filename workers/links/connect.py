"""Connects the stages of a pipeline, by the transport that suits their devices."""

import logging
from dataclasses import replace

from workers.contract.config import TransportName, WorkerConfig
from workers.links.transport import Links, PipelineError

_logger = logging.getLogger(__name__)


def connect(worker: WorkerConfig) -> Links:
    """Connect this stage to its neighbours, if it has any. Every stage must call this, and every
    edge is tried.

    Raises PipelineError, SymmetricMemoryError or StreamCounterError.
    """
    config = worker.execution
    if config.num_stages == 1:
        return Links()
    # torch.distributed takes a moment to import.
    if config.device_type == "cpu":
        from workers.links.gloo import connect_gloo  # noqa: PLC0415

        return connect_gloo(worker)
    return _connect_gpus(worker)


def _connect_gpus(worker: WorkerConfig) -> Links:
    from workers.links.peer_memory import connect_peer_memory, reaches_peers  # noqa: PLC0415
    from workers.links.process_groups import all_agree, joined  # noqa: PLC0415

    transport: TransportName = worker.execution.transport
    with joined(worker):
        reached = all_agree(reaches_peers(worker))
        if transport == "peer-memory" and not reached:
            raise PipelineError(
                f"the GPUs {', '.join(worker.execution.gpus)} cannot all write to each other's "
                f"memory: use {worker.execution.setting('transport')} nccl"
            )
        if reached and transport != "nccl":
            ring_bytes = worker.execution.activation_ring_bytes
            return replace(connect_peer_memory(worker), ring_bytes=ring_bytes)
        from workers.links.nccl import connect_nccl  # noqa: PLC0415

        links = connect_nccl(worker)
    if worker.stage == 0 and transport == "auto":
        _logger.warning("the GPUs cannot all write to each other's memory: NCCL is used")
    return links
