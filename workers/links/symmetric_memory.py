"""Memory of one size on every stage's GPU, which all stages can read and write: torch's symmetric
memory.

This file alone knows that interface, which torch may change: every name that it uses is checked by
a test, and where one is missing the stages take another transport.
"""

# torch leaves the types of this interface open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import os

import torch
import torch.distributed as dist

from workers.contract.process import NO_MULTICAST
from workers.links.transport import SymmetricMemoryError


class SymmetricMemory:
    """A part of `nbytes` on each stage's GPU, zero at first. It exists as long as this object."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        """Every member of torch.distributed's world group must call this; it waits for the others.
        Raises SymmetricMemoryError."""
        for name, value in NO_MULTICAST.items():
            if os.environ.get(name) != value:
                raise SymmetricMemoryError(f"{name} is not {value}: multicast could harm the host")
        import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415

        self._own = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
        self._own.zero_()
        # Nobody writes to another stage's part before all parts are zero.
        torch.cuda.synchronize()
        world = dist.group.WORLD
        assert world is not None, "joined before"
        self._handle = symmetric.rendezvous(self._own, world)
        self._nbytes = nbytes

    def of(self, stage: int) -> torch.Tensor:
        """The part of `stage`, uint8[nbytes], as a tensor of this stage's device."""
        return self._handle.get_buffer(stage, (self._nbytes,), torch.uint8)


def has_symmetric_memory() -> bool:
    """Whether this torch has every name that is used here."""
    try:
        import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415
    except ImportError:
        return False
    return hasattr(symmetric, "empty") and hasattr(symmetric, "rendezvous")
