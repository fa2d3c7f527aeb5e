"""Hidden states between stages on CPUs: gloo, point to point.

Each edge k -> k + 1 has a process group of its own: stages that shared one could wait for each
other in a ring.
"""

# torch.distributed leaves the types of its groups open.
# pyright: reportUnknownMemberType=false

import queue
import threading
from typing import NoReturn

import torch
import torch.distributed as dist

from workers.contract.config import WorkerConfig
from workers.links.process_groups import edge_groups, joined
from workers.links.transport import Links, PipelineError
from workers.weights.loader import TORCH_DTYPES


class GlooReceiver:
    """See `ActivationReceiver`."""

    def __init__(self, source: int, group: dist.ProcessGroup, template: torch.Tensor) -> None:
        """`template` [1, hidden_size] has the dtype of the states."""
        self._source, self._group, self._template = source, group, template

    def receive(self, step: int, num_tokens: int) -> torch.Tensor:
        del step  # they come in order
        hidden = self._template.new_empty(num_tokens, self._template.shape[1])
        try:
            dist.recv(hidden, src=self._source, group=self._group)
        except RuntimeError as error:
            raise PipelineError(f"nothing comes from stage {self._source}: {error}") from error
        return hidden


class GlooSender:
    """See `ActivationSender`.

    Gloo's send is a rendezvous even for a few bytes, and reads the tensor until the other side has
    it. So a thread waits for it, and its queue keeps the tensors of at most `depth` steps alive.
    """

    def __init__(
        self,
        destination: int,
        group: dist.ProcessGroup,
        depth: int,
    ) -> None:
        self._destination = destination
        self._group = group
        self._queue: queue.Queue[torch.Tensor] = queue.Queue(depth)
        threading.Thread(target=self._send_all, name="activation-sender", daemon=True).start()

    def send(self, step: int, hidden: torch.Tensor, *, reused: bool) -> None:
        del step, reused
        self._queue.put(hidden)

    def _send_all(self) -> NoReturn:
        """The thread, whose error ends the process."""
        while True:
            hidden = self._queue.get()
            try:
                dist.send(hidden, dst=self._destination, group=self._group)
            except RuntimeError as error:
                reason = f"nothing reaches stage {self._destination}: {error}"
                raise PipelineError(reason) from error


def connect_gloo(worker: WorkerConfig) -> Links:
    """Connect this stage to its neighbours, and send one row over every edge to test it.

    Every stage must call this. A send that fails ends the process.
    """
    config, stage = worker.execution, worker.stage
    with joined(worker):
        edges = edge_groups(config.num_stages, "gloo")
    row = torch.zeros(1, config.model.hidden_size, dtype=TORCH_DTYPES[config.dtype])
    previous = next_stage = None
    if stage > 0:
        previous = GlooReceiver(stage - 1, edges[stage - 1], row)
        previous.receive(-1, 1)
    if stage < config.num_stages - 1:
        next_stage = GlooSender(stage + 1, edges[stage], config.max_depth)
        next_stage.send(-1, row, reused=False)
    return Links(previous, next_stage)
