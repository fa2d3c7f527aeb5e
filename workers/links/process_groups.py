"""Hidden states between stages by the process groups of torch.distributed.

Gloo connects CPUs, NCCL those GPUs that cannot reach each other's memory, as those of two hosts.
Each edge k -> k + 1 has a group of its own: stages that shared one could wait for each other in a
ring.

NCCL's receive is queued on the stream that computes, right before the work that needs it: pending
beside other work, it would slow that by a sixth or more. A sender's stream waits until the receiver
has come so far. So NCCL is the slower transport of GPUs.
"""

# torch.distributed leaves the types of its groups open.
# pyright: reportUnknownMemberType=false

import queue
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, NoReturn, cast

import torch
import torch.distributed as dist

from workers.contract.config import WorkerConfig
from workers.layers.layer import TORCH_DTYPES
from workers.links.store import EngineStore
from workers.links.transport import ActivationSender, Links, PipelineError


def join(worker: WorkerConfig, store: EngineStore) -> None:
    """Join the group of all stages, who find each other by `store`."""
    world_size = worker.execution.num_stages
    with needing_all_stages():
        dist.init_process_group("gloo", store=store, rank=worker.stage, world_size=world_size)


@contextmanager
def needing_all_stages() -> Generator[None]:
    """For calls that fail where another stage is lost meanwhile: raises PipelineError then."""
    try:
        yield
    except RuntimeError as error:
        raise PipelineError(f"the stages cannot connect: {error}") from error


def group_of(stages: Sequence[int], backend: Literal["gloo", "nccl"]) -> dist.ProcessGroup:
    """A group of these stages, or a placeholder in all others.

    Every stage takes part in making every group, in the same order. Raises PipelineError.
    """
    with needing_all_stages():
        return cast("dist.ProcessGroup", dist.new_group(list(stages), backend=backend))


def votes(own: bool) -> list[bool]:
    """The word of each stage. Every stage must call this. Raises PipelineError."""
    gathered = [torch.empty(1, dtype=torch.int32) for _ in range(dist.get_world_size())]
    with needing_all_stages():
        dist.all_gather(gathered, torch.tensor([own], dtype=torch.int32))
    return [bool(vote.item()) for vote in gathered]


def _edge_groups(
    edges: Sequence[int], backend: Literal["gloo", "nccl"]
) -> dict[int, dist.ProcessGroup]:
    return {first: group_of((first, first + 1), backend) for first in edges}


class GroupReceiver:
    """See `ActivationReceiver`. Steps come in order."""

    def __init__(
        self, source: int, group: dist.ProcessGroup, room: Callable[[int], torch.Tensor]
    ) -> None:
        """`room` gives memory for the states of so many tokens."""
        self._source, self._group, self._room = source, group, room

    def receive(self, step: int, num_tokens: int) -> torch.Tensor:
        hidden = self._room(num_tokens)
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

    def __init__(self, destination: int, group: dist.ProcessGroup, depth: int) -> None:
        self._destination, self._group = destination, group
        self._queue: queue.Queue[torch.Tensor] = queue.Queue(depth)
        threading.Thread(target=self._send_all, name="activation-sender", daemon=True).start()

    def send(self, step: int, hidden: torch.Tensor, *, reused: bool) -> None:
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
    """Connect this stage, after `join`, to its neighbours. One row tests every edge.

    Every stage must call this. A send that fails ends the process.
    """
    config = worker.execution
    edges = _edge_groups(range(config.num_stages - 1), "gloo")
    row = torch.zeros(1, config.model.state_size, dtype=TORCH_DTYPES[config.dtype])
    sender = partial(GlooSender, depth=config.max_depth)
    return _tested_links(
        worker.stage, edges, lambda count: row.new_empty(count, row.shape[1]), sender, row
    )


class NCCLSender:
    """See `ActivationSender`. Steps are sent in stream order."""

    def __init__(self, destination: int, group: dist.ProcessGroup) -> None:
        self._destination, self._group = destination, group

    def send(self, step: int, hidden: torch.Tensor, *, reused: bool) -> None:
        dist.send(hidden, dst=self._destination, group=self._group)


def connect_nccl(worker: WorkerConfig, edges: Sequence[int]) -> Links:
    """Connect this stage, after `join`, to its neighbours by NCCL, which connects at the first use.

    `edges` are all edges k -> k + 1 of the pipeline that go by NCCL. One buffer for the largest
    step is enough: the next receive is queued behind the work that reads it. Every stage must call
    this. Raises PipelineError.
    """
    config, stage = worker.execution, worker.stage
    groups = _edge_groups(edges, "nccl")
    shape = (config.largest_step_tokens if stage - 1 in groups else 1, config.model.state_size)
    dtype, device = TORCH_DTYPES[config.dtype], torch.device(worker.local_device)
    buffer = torch.zeros(shape, dtype=dtype, device=device)
    with needing_all_stages():
        links = _tested_links(stage, groups, lambda count: buffer[:count], NCCLSender, buffer[:1])
        torch.cuda.synchronize()
    return links


def _tested_links(
    stage: int,
    edges: Mapping[int, dist.ProcessGroup],
    room: Callable[[int], torch.Tensor],
    sender: Callable[[int, dist.ProcessGroup], ActivationSender],
    row: torch.Tensor,
) -> Links:
    """The links, after a row has come over the edge before this stage and left over the next, where
    `edges` has them."""
    previous = next_stage = None
    if stage - 1 in edges:
        previous = GroupReceiver(stage - 1, edges[stage - 1], room)
        previous.receive(-1, 1)
    if stage in edges:
        next_stage = sender(stage + 1, edges[stage])
        next_stage.send(-1, row, reused=False)
    return Links(previous, next_stage)
