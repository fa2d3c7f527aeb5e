"""Activations between neighbouring stages, point to point over torch.distributed.

Both ends have the same step message and derive the shape from it, so only the elements are sent.
Each edge k -> k + 1 has a process group of its own: stages that shared one could wait for each
other in a ring.
"""

# torch.distributed leaves the types of its groups open.
# pyright: reportUnknownMemberType=false

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist

from workers.contract.config import WorkerConfig
from workers.links.native_log import native_lines_logged
from workers.weights.loader import TORCH_DTYPES

_logger = logging.getLogger(__name__)


class PipelineError(RuntimeError):
    """A neighbouring stage cannot be reached any more; the message names it."""


class ActivationReceiver:
    """Receives hidden states from the stage before, in step order."""

    def __init__(self, source: int, group: dist.ProcessGroup, template: torch.Tensor) -> None:
        """`template` [1, hidden_size] has the dtype and device of the states."""
        self._source = source
        self._group = group
        self._template = template

    def receive(self, num_tokens: int) -> torch.Tensor:
        """Wait for the next step's states, [num_tokens, hidden_size]. Raises PipelineError."""
        hidden = self._template.new_empty(num_tokens, self._template.shape[1])
        try:
            dist.recv(hidden, src=self._source, group=self._group)
        except RuntimeError as error:
            raise PipelineError(f"nothing comes from stage {self._source}: {error}") from error
        return hidden


class ActivationSender:
    """Sends hidden states to the next stage without waiting until it receives them.

    Gloo's send is a rendezvous even for a few bytes, and reads the tensor until the other side has
    it. So a thread waits for it, and its queue keeps the tensors of at most `depth` steps alive.
    """

    def __init__(
        self,
        destination: int,
        group: dist.ProcessGroup,
        depth: int,
        on_failure: Callable[[PipelineError], None],
    ) -> None:
        self._destination = destination
        self._group = group
        self._queue: queue.Queue[torch.Tensor] = queue.Queue(depth)
        self._on_failure = on_failure
        threading.Thread(target=self._send_all, name="activation-sender", daemon=True).start()

    def send(self, hidden: torch.Tensor) -> None:
        """Queue a step's states, which must not be changed afterwards."""
        self._queue.put(hidden)

    def _send_all(self) -> None:
        try:
            while True:
                dist.send(self._queue.get(), dst=self._destination, group=self._group)
        except RuntimeError as error:
            reason = f"nothing reaches stage {self._destination}: {error}"
            self._on_failure(PipelineError(reason))


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A stage's links; None at either end of the pipeline."""

    previous: ActivationReceiver | None = None
    next: ActivationSender | None = None


def connect(worker: WorkerConfig, on_failure: Callable[[PipelineError], None]) -> Neighbours:
    """Connect this stage to its neighbours, and send one row over every edge to test it.

    Every stage must call this. `on_failure` is called in the sending thread if a send fails.
    """
    config, stage = worker.execution, worker.stage
    if config.num_stages == 1:
        return Neighbours()
    with native_lines_logged(_logger):
        dist.init_process_group(
            "gloo",
            init_method=f"file://{config.rendezvous}",
            rank=stage,
            world_size=config.num_stages,
        )
        # Every stage takes part in making every group, in the same order.
        edges = [_edge(k) for k in range(config.num_stages - 1)]
    dtype = TORCH_DTYPES[config.dtype]
    row = torch.zeros(1, config.model.hidden_size, dtype=dtype, device=worker.local_device)
    previous = next_stage = None
    if stage > 0:
        previous = ActivationReceiver(stage - 1, edges[stage - 1], row)
        previous.receive(1)
    if stage < config.num_stages - 1:
        edge = edges[stage]
        next_stage = ActivationSender(stage + 1, edge, config.max_depth, on_failure)
        next_stage.send(row)
    return Neighbours(previous, next_stage)


def _edge(first: int) -> dist.ProcessGroup:
    """The group of stages `first` and `first` + 1; a placeholder in any other stage."""
    return cast("dist.ProcessGroup", dist.new_group([first, first + 1]))
