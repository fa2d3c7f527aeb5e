"""Out of memory on a CUDA device, in words, and giving memory back."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

import torch

GIB = 1 << 30


class DeviceMemoryError(Exception):
    """Too little memory on the device. One line says which setting to lower, and by how much."""


@contextmanager
def explained(doing: str, remedy: str, needed: int = 0) -> Generator[None]:
    """Turn running out of memory into a DeviceMemoryError with the remedy. With the bytes `needed`
    it names the amount, too."""
    free = torch.cuda.mem_get_info()[0] if needed and torch.cuda.is_available() else 0
    try:
        yield
    except torch.OutOfMemoryError:
        left, total = torch.cuda.mem_get_info()
        amount = f" by at least {(needed - free) / GIB:.1f} GiB" if needed > free else ""
        raise DeviceMemoryError(
            f"out of memory while {doing}: {left / GIB:.1f} of {total / GIB:.1f} GiB are free; "
            f"{remedy}{amount}"
        ) from None


def release_cached() -> None:
    gc.collect()
    torch.cuda.empty_cache()
