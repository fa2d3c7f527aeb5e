"""Hidden states between stages by the process groups of torch.distributed.

Gloo connects CPUs, NCCL those GPUs that cannot reach each other's memory. Each edge k -> k + 1 has
a group of its own: stages that shared one could wait for each other in a ring.

NCCL's receive is queued on the stream that computes, right before the work that needs it. Pending
beside other work, it would slow that work's matrix products by a sixth or more. A sender's stream
waits until the receiver has come so far. So NCCL is the slower transport of GPUs.
"""

# torch.distributed leaves the types of its groups open.
# pyright: reportUnknownMemberType=false

import logging
import os
import queue
import re
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, NoReturn, cast

import torch
import torch.distributed as dist

from workers.contract.config import WorkerConfig
from workers.layers.layer import TORCH_DTYPES
from workers.links.transport import ActivationReceiver, ActivationSender, Links, PipelineError

_STDERR = 2

_GLOO = re.compile(r"\[.*?:\d+\] (?P<level>DEBUG|INFO|WARN|ERROR) (?P<text>.*)")
"""Gloo's format: `[FILE:LINE] LEVEL TEXT`."""

_logger = logging.getLogger(__name__)


@contextmanager
def joined(worker: WorkerConfig) -> Generator[None]:
    """Join a gloo group of all stages. What C++ libraries write within the block is logged.

    Raises PipelineError.
    """
    config = worker.execution
    with _native_lines_logged():
        with needing_all_stages():
            dist.init_process_group(
                "gloo",
                init_method=f"file://{config.rendezvous}",
                rank=worker.stage,
                world_size=config.num_stages,
            )
        yield


@contextmanager
def needing_all_stages() -> Generator[None]:
    """For calls that fail where another stage is lost meanwhile: raises PipelineError then."""
    try:
        yield
    except RuntimeError as error:
        raise PipelineError(f"the stages cannot connect: {error}") from error


def edge_groups(num_stages: int, backend: Literal["gloo", "nccl"]) -> list[dist.ProcessGroup]:
    """A group for each edge k -> k + 1, or a placeholder where this stage is at neither end.

    Every stage takes part in making every group, in the same order. Raises PipelineError.
    """
    with needing_all_stages():
        return [
            cast("dist.ProcessGroup", dist.new_group([first, first + 1], backend=backend))
            for first in range(num_stages - 1)
        ]


def all_agree(own: bool) -> bool:
    """Whether every stage says yes. Every stage must call this. Raises PipelineError."""
    votes = torch.tensor([own], dtype=torch.int32)
    with needing_all_stages():
        dist.all_reduce(votes, dist.ReduceOp.MIN)
    return bool(votes.item())


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

    def __init__(self, destination: int, group: dist.ProcessGroup, depth: int) -> None:
        self._destination, self._group = destination, group
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
    config = worker.execution
    with joined(worker):
        edges = edge_groups(config.num_stages, "gloo")
    row = torch.zeros(1, config.model.hidden_size, dtype=TORCH_DTYPES[config.dtype])
    receiver, sender = (
        partial(GlooReceiver, template=row),
        partial(GlooSender, depth=config.max_depth),
    )
    return _tested_links(worker.stage, edges, receiver, sender, row)


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
    """Connect this stage, a member of `process_groups.joined`, to its neighbours by NCCL.

    One row is sent over every edge, because NCCL connects at the first use. Every stage must call
    this. Raises PipelineError.
    """
    config = worker.execution
    edges = edge_groups(config.num_stages, "nccl")
    shape = (config.largest_step_tokens if worker.stage else 1, config.model.hidden_size)
    dtype, device = TORCH_DTYPES[config.dtype], torch.device(worker.local_device)
    buffer = torch.zeros(shape, dtype=dtype, device=device)
    with needing_all_stages():
        receiver = partial(NCCLReceiver, buffer=buffer)
        links = _tested_links(worker.stage, edges, receiver, NCCLSender, buffer[:1])
        torch.cuda.synchronize()
    return links


def _tested_links(
    stage: int,
    edges: Sequence[dist.ProcessGroup],
    receiver: Callable[[int, dist.ProcessGroup], ActivationReceiver],
    sender: Callable[[int, dist.ProcessGroup], ActivationSender],
    row: torch.Tensor,
) -> Links:
    """The links, after a row has come over the edge before this stage and left over the next."""
    previous = next_stage = None
    if stage > 0:
        previous = receiver(stage - 1, edges[stage - 1])
        previous.receive(-1, 1)
    if stage < len(edges):
        next_stage = sender(stage + 1, edges[stage])
        next_stage.send(-1, row, reused=False)
    return Links(previous, next_stage)


@contextmanager
def _native_lines_logged() -> Generator[None]:
    """Capture the process's standard error, and log its lines at the end.

    For C++ libraries such as gloo whose output cannot be redirected. The log itself has a
    descriptor of its own (`contract/process/standard_error.py`).
    """
    own = os.dup(_STDERR)
    with tempfile.TemporaryFile("w+", errors="replace") as written:
        os.dup2(written.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(own, _STDERR)
            os.close(own)
            written.seek(0)
            for line in written:
                _log(line.strip())


def _log(line: str) -> None:
    """Log a line at the level that it names, or else as a warning."""
    found = _GLOO.fullmatch(line)
    if found is None:
        _logger.warning("%s", line)
    else:
        levels = logging.getLevelNamesMapping()
        _logger.log(levels[found["level"]], "gloo: %s", found["text"])
