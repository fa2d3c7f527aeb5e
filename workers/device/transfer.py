"""Copies between NumPy arrays on the host and tensors on a stage's device."""
# torch does not type from_numpy and split.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 8
"""Bytes of the widest element type, so that every part can be viewed in its own type."""


def to_device(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """The arrays as tensors. On the CPU they share memory; elsewhere one transfer copies them all,
    queued on the current stream without waiting."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    return views(pin(arrays).to(device, non_blocking=True), arrays)


def views(buffer: torch.Tensor, arrays: Sequence[npt.NDArray[Any]]) -> list[torch.Tensor]:
    """Tensors as `arrays` are, in a buffer that is laid out as by `pin`."""
    return [
        part[: array.nbytes].view(_torch_dtype(array.dtype)).view(array.shape)
        for part, array in zip(buffer.split(_sizes(arrays)), arrays, strict=True)
    ]


def pin(arrays: Sequence[npt.NDArray[Any]]) -> torch.Tensor:
    """A staging buffer in pinned memory: the arrays one after another as uint8, each aligned.

    torch's host allocator reuses the memory only after every queued copy from it is done. So it is
    a ring of staging buffers guarded by events.
    """
    sizes = _sizes(arrays)
    pinned = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
    host: npt.NDArray[np.uint8] = pinned.numpy()
    start = 0
    for array, size in zip(arrays, sizes, strict=True):
        host[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        start += size
    return pinned


@cache
def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _sizes(arrays: Sequence[npt.NDArray[Any]]) -> list[int]:
    return [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]


def on_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    return to_device([array], device)[0]


def to_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    return tensor.cpu().numpy()


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor in order, as they are sent in messages."""
    return to_array(tensor).tobytes()
