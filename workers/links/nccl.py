"""Hidden states between stages on GPUs that cannot reach each other's memory: NCCL.

A receive is queued on the stream that computes, right before the work that needs it: one that was
pending beside other work would slow that work's matrix products by a sixth or more. A sender's
stream waits until the receiver has come so far. So this is the slower transport.
"""

# torch.distributed leaves the types of its groups open.
# pyright: reportUnknownMemberType=false

import torch
import torch.distributed as dist

from workers.contract.config import WorkerConfig
from workers.links.process_groups import edge_groups, needing_all_stages
from workers.links.transport import Links
from workers.weights.loader import TORCH_DTYPES


class NCCLReceiver:
    """See `ActivationReceiver`."""

    def __init__(self, source: int, group: dist.ProcessGroup, buffer: torch.Tensor) -> None:
        """`buffer` [N, hidden_size] has room for the largest step. One is enough: the next receive
        is queued behind the work that reads it."""
        self._source, self._group, self._buffer = source, group, buffer

    def receive(self, step: int, num_tokens: int) -> torch.Tensor:
        del step  # they come in order
        hidden = self._buffer[:num_tokens]
        dist.recv(hidden, src=self._source, group=self._group)
        return hidden


class NCCLSender:
    """See `ActivationSender`."""

    def __init__(self, destination: int, group: dist.ProcessGroup) -> None:
        self._destination, self._group = destination, group

    def send(self, step: int, hidden: torch.Tensor, *, reused: bool) -> None:
        del step, reused  # they come in order, and are sent in stream order
        dist.send(hidden, dst=self._destination, group=self._group)


def connect_nccl(worker: WorkerConfig) -> Links:
    """Connect this stage, a member of `process_groups.joined`, to its neighbours, and send one row
    over every edge: NCCL connects at the first use. Every stage must call this. Raises
    PipelineError."""
    config, stage = worker.execution, worker.stage
    edges = edge_groups(config.num_stages, "nccl")
    shape = (config.largest_step_tokens, config.model.hidden_size)
    dtype, device = TORCH_DTYPES[config.dtype], torch.device(worker.local_device)
    row = torch.zeros(1, shape[1], dtype=dtype, device=device)
    previous = next_stage = None
    if stage > 0:
        buffer = torch.zeros(shape, dtype=dtype, device=device)
        previous = NCCLReceiver(stage - 1, edges[stage - 1], buffer)
    if stage < config.num_stages - 1:
        next_stage = NCCLSender(stage + 1, edges[stage])
    with needing_all_stages():
        if previous is not None:
            previous.receive(-1, 1)
        if next_stage is not None:
            next_stage.send(-1, row, reused=False)
        torch.cuda.synchronize()
    return Links(previous, next_stage)
