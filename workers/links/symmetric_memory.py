"""Memory of one size on every stage's GPU, which all stages can read and write: torch's symmetric
memory.

This file alone knows that interface, which torch may change: every name that it uses is checked by
a test, and where one is missing the stages take another transport.
"""

# torch does not declare these names as public.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false
# pyright: reportPrivateImportUsage=false

import os
from pathlib import Path

import torch
import torch.distributed as dist

NO_MULTICAST = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
"""Must be 1. Otherwise torch makes NVLink multicast objects, and one of these can put the GPUs of a
host out of service for a day."""

_GROUP = "stages"


class SymmetricMemoryError(RuntimeError):
    """The memory cannot be had; the message says why."""


class SymmetricMemory:
    """`own` uint8[nbytes] is this stage's part, zero at first."""

    def __init__(
        self, file: Path, stage: int, num_stages: int, nbytes: int, device: torch.device
    ) -> None:
        """Every stage must call this; it waits for the others, which find each other through
        `file`. Raises SymmetricMemoryError."""
        if os.environ.get(NO_MULTICAST) != "1":
            raise SymmetricMemoryError(f"{NO_MULTICAST} is not 1: multicast could harm the host")
        memory = _interface()
        store = dist.FileStore(str(file), num_stages)
        memory.set_group_info(_GROUP, stage, num_stages, store)
        self.own: torch.Tensor = memory.empty_strided_p2p((nbytes,), (1,), torch.uint8, device)
        self.own.zero_()
        # Nobody writes to another stage's part before all parts are zero.
        torch.cuda.synchronize()
        self._handle = memory.rendezvous(self.own, _GROUP)
        self._nbytes = nbytes

    def of(self, stage: int) -> torch.Tensor:
        """The part of `stage`, uint8[nbytes], as a tensor of this stage's device."""
        part: torch.Tensor = self._handle.get_buffer(stage, (self._nbytes,), torch.uint8)
        return part


def has_symmetric_memory() -> bool:
    """Whether this torch has every name that is used here."""
    names = ("set_group_info", "empty_strided_p2p", "rendezvous", "get_buffer")
    try:
        return all(hasattr(_interface(), name) for name in names)
    except ImportError:
        return False


def _interface():  # noqa: ANN202 (private to torch)
    from torch._C._distributed_c10d import _SymmetricMemory  # noqa: PLC0415

    return _SymmetricMemory
