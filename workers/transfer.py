"""Between NumPy arrays on the host and tensors on a stage's device."""
# torch leaves the types of from_numpy and split open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 8
"""Bytes: the size of the widest element, so that every part can be viewed as what it is."""


def to_device(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """The arrays as tensors: on the CPU they share memory, elsewhere all travel in one copy."""
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.type == "cpu":
        return tensors
    sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    staging = torch.from_numpy(np.empty(sum(sizes), np.uint8))
    for part, tensor in zip(staging.split(sizes), tensors, strict=True):
        part[: tensor.nbytes].view(tensor.dtype).copy_(tensor.flatten())
    return [
        part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for part, tensor in zip(staging.to(device).split(sizes), tensors, strict=True)
    ]


def on_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """One array as a tensor; on the CPU it shares memory."""
    return torch.from_numpy(array).to(device)


def to_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """A tensor as an array; on the CPU it shares memory."""
    return tensor.cpu().numpy()


def to_bytes(tensor: torch.Tensor) -> bytes:
    """The elements of a tensor in order, as messages carry them."""
    return to_array(tensor).tobytes()
