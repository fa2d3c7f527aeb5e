"""The process groups of torch.distributed that the stages of a pipeline form."""

# torch.distributed leaves the types of its groups open.
# pyright: reportUnknownMemberType=false

import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal, cast

import torch
import torch.distributed as dist

from workers.contract.config import WorkerConfig
from workers.links.native_log import native_lines_logged
from workers.links.transport import PipelineError

_logger = logging.getLogger(__name__)


@contextmanager
def joined(worker: WorkerConfig) -> Generator[None]:
    """Join a gloo group of all stages; what C++ libraries write within the block is logged. Raises
    PipelineError."""
    config = worker.execution
    with native_lines_logged(_logger):
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
    """A group for each edge k -> k + 1; placeholders where this stage is no part of it. Every stage
    takes part in making every group, in the same order. Raises PipelineError."""
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
