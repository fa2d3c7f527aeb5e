"""Transports of hidden states to the next stage, and of tokens to the first: interface and choice.

A step's states have one row for each of its T tokens, whatever a stage pads or captures. Both ends
read T from the step's message, so only elements travel.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch

from workers.contract.config import WorkerConfig
from workers.links.engine_link import EngineLink, ZMQContext

_logger = logging.getLogger(__name__)


class PipelineError(RuntimeError):
    """A neighbouring stage cannot be reached. The message names it."""


class ActivationSender(Protocol):
    """Sends hidden states to the next stage, step after step."""

    def send(self, step: int, hidden: torch.Tensor, *, reused: bool) -> None:
        """Send a step's states [T, state_size] without waiting until they are received.

        `reused`: work that is queued on the current stream later overwrites their memory, as a
        graph's next replay does. It never does on a CPU.
        """


class ActivationReceiver(Protocol):
    """Receives hidden states from the stage before, step after step."""

    def receive(self, step: int, num_tokens: int) -> torch.Tensor:
        """A step's states [num_tokens, state_size], which this stage may overwrite. On a CPU this
        waits for them; on CUDA the current stream does. Raises PipelineError."""
        ...


class TokenMemory(Protocol):
    """The newest token of every slot, in memory of the first stage that the last stage writes.

    `last_tokens` is int64[max_running + 1], as in `SlotTable`.
    """

    last_tokens: torch.Tensor

    def announce(self, step: int) -> None:
        """Last stage: announce that the current stream has been given the tokens of `step`, if any
        of its rows samples."""

    def wait_for(self, step: int) -> None:
        """First stage: let the current stream wait for the tokens of `step`. -1 is none."""


@dataclass(frozen=True, slots=True)
class Links:
    """A stage's links to other stages.

    previous, next  None at either end of the pipeline.
    tokens          None where sampled tokens return over ZMQ (`engine_link.py`), and on stages
                    that neither sample nor look tokens up.
    ring_bytes      device memory of the links that torch's allocator does not count.
    store           the store that process groups call (`store.py`), which must live as long.
    """

    previous: ActivationReceiver | None = None
    next: ActivationSender | None = None
    tokens: TokenMemory | None = None
    ring_bytes: int = 0
    store: object = None


def connect(worker: WorkerConfig, context: ZMQContext) -> Links:
    """Connect this stage to its neighbours, if it has any. Every stage must call this, and every
    edge is tried.

    Raises PipelineError.
    """
    config = worker.execution
    if config.num_stages == 1:
        return Links()
    # torch.distributed takes a moment to import.
    from workers.links import process_groups as groups  # noqa: PLC0415
    from workers.links.store import EngineStore  # noqa: PLC0415

    store = EngineStore(EngineLink(context, config, worker.stage, "store"))
    groups.join(worker, store)
    links = groups.connect_gloo(worker) if config.device_type == "cpu" else _connect_gpus(worker)
    return replace(links, store=store)


def _connect_gpus(worker: WorkerConfig) -> Links:
    """Connect stages of one host by its GPUs' memory where these can be reached, and all others by
    NCCL."""
    from workers.links import process_groups as groups  # noqa: PLC0415
    from workers.links.peer_memory import connect_peer_memory, reaches_peers  # noqa: PLC0415

    config = worker.execution
    sharing = _sharing_nodes(worker, groups.votes(reaches_peers(worker)))
    within = {node: groups.group_of(config.stages_of(node), "gloo") for node in sharing}
    inside = Links()
    if worker.node in within:
        inside = connect_peer_memory(worker, within[worker.node])
    nodes = [config.node_of(stage) for stage in range(config.num_stages)]
    edges = [
        first
        for first, (node, following) in enumerate(pairwise(nodes))
        if node != following or node not in sharing
    ]
    between = groups.connect_nccl(worker, edges)
    return replace(
        inside,
        previous=inside.previous or between.previous,
        next=inside.next or between.next,
    )


def _sharing_nodes(worker: WorkerConfig, reached: Sequence[bool]) -> list[int]:
    """The hosts whose stages write into each other's memory. `reached`: whether each stage's GPU
    could. Raises PipelineError if that is asked for and cannot be."""
    config, sharing = worker.execution, list[int]()
    for node in sorted({config.node_of(stage) for stage in range(config.num_stages)}):
        stages = config.stages_of(node)
        if len(stages) == 1 or config.transport == "nccl":
            continue
        if all(reached[stage] for stage in stages):
            sharing.append(node)
            continue
        gpus = ", ".join(dict.fromkeys(config.devices[stage] for stage in stages))
        cannot = f"the GPUs {gpus} cannot all write to each other's memory"
        if config.transport == "peer-memory":
            raise PipelineError(f"{cannot}: use {config.setting('transport')} nccl")
        if worker.stage == stages[0]:
            _logger.warning("%s: NCCL is used", cannot)
    return sharing
