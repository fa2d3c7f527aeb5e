"""Transports of hidden states to the next stage, and of tokens to the first: interface and choice.

A step's states have one row for each of its T tokens, whatever a stage pads or captures. Both ends
read T from the step's message, so only elements travel.
"""

import logging
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from workers.contract.config import WorkerConfig

_logger = logging.getLogger(__name__)


class PipelineError(RuntimeError):
    """A neighbouring stage cannot be reached. The message names it."""


class ActivationSender(Protocol):
    """Sends hidden states to the next stage, step after step."""

    def send(self, step: int, hidden: torch.Tensor, *, reused: bool) -> None:
        """Send a step's states [T, hidden_size] without waiting until they are received.

        `reused`: work that is queued on the current stream later overwrites their memory, as a
        graph's next replay does. It never does on a CPU.
        """


class ActivationReceiver(Protocol):
    """Receives hidden states from the stage before, step after step."""

    def receive(self, step: int, num_tokens: int) -> torch.Tensor:
        """A step's states [num_tokens, hidden_size], which this stage may overwrite. On a CPU this
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
    """

    previous: ActivationReceiver | None = None
    next: ActivationSender | None = None
    tokens: TokenMemory | None = None
    ring_bytes: int = 0


def connect(worker: WorkerConfig) -> Links:
    """Connect this stage to its neighbours, if it has any. Every stage must call this, and every
    edge is tried.

    Raises PipelineError.
    """
    config = worker.execution
    if config.num_stages == 1:
        return Links()
    # torch.distributed takes a moment to import.
    from workers.links import process_groups as groups  # noqa: PLC0415

    groups.join(worker)
    if config.device_type == "cpu":
        return groups.connect_gloo(worker)
    from workers.links.peer_memory import connect_peer_memory, reaches_peers  # noqa: PLC0415

    reached = groups.all_agree(reaches_peers(worker))
    if config.transport == "peer-memory" and not reached:
        raise PipelineError(
            f"the GPUs {', '.join(config.gpus)} cannot all write to each other's memory: use "
            f"{config.setting('transport')} nccl"
        )
    if reached and config.transport != "nccl":
        return replace(connect_peer_memory(worker), ring_bytes=config.activation_ring_bytes)
    if worker.stage == 0 and config.transport == "auto":
        _logger.warning("the GPUs cannot all write to each other's memory: NCCL is used")
    return groups.connect_nccl(worker)
