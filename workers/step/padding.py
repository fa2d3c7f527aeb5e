"""Steps are padded on a CPU, where matrix products of fewer rows take another path and round
otherwise."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from workers.layers.linear import MIN_CPU_ROWS
from workers.step.rows import LongArray


def padded_count(total: int, device: torch.device) -> int:
    """How many tokens a step of `total` has on the device, padding included."""
    return max(total, MIN_CPU_ROWS) if device.type == "cpu" else total


def lengthened(values: npt.NDArray[Any], padded: int) -> LongArray:
    """The values as int64[padded], with zeros behind them."""
    wide = np.zeros(padded, np.int64)
    wide[: len(values)] = values
    return wide
