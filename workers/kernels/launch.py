"""Launch options of the kernels, and properties of the GPU."""

from functools import lru_cache
from typing import Any, cast

import torch


def pdl(tensor: torch.Tensor) -> dict[str, bool]:
    """Programmatic dependent launch (griddepcontrol, CUDA 12.3) where the GPU of `tensor` has it.

    Returns arguments of a launch: the kernel's own flag and Triton's. Such a kernel starts while
    the one before it in the stream still runs. Every program must call gdc_wait() before it touches
    anything but constants such as weights. It may let the next kernel start before that, since the
    wait of the next includes this kernel's.
    """
    if tensor.is_cuda and _is_hopper_or_later(tensor.device):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


@lru_cache
def _is_hopper_or_later(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


@lru_cache
def processors(device: torch.device) -> int:
    """Number of streaming multiprocessors. The CPU, for Triton's interpreter, has two, so that
    launches sized by this number have several programs."""
    if device.type == "cpu":
        return 2
    # torch leaves this function's types open.
    properties = cast("Any", torch.cuda.get_device_properties(device))  # pyright: ignore[reportUnknownMemberType]
    return int(properties.multi_processor_count)
