"""A CPU's steps are padded: products of fewer rows take another path there, and round otherwise."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from workers.layers.linear import MIN_CPU_ROWS
from workers.step.rows import LongArray


def padded_count(total: int, device: torch.device) -> int:
    """How many tokens a step of so many has on the device."""
    return max(total, MIN_CPU_ROWS) if device.type == "cpu" else total


def lengthened(values: npt.NDArray[Any], padded: int) -> LongArray:
    """The same as int64[padded], filled up with zeros."""
    wide = np.zeros(padded, np.int64)
    wide[: len(values)] = values
    return wide
