"""Programmatic dependent launch (griddepcontrol, CUDA 12.3): a kernel starts while the one before
it in the stream still runs."""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from functools import lru_cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def pdl(tensor: torch.Tensor) -> dict[str, bool]:
    """Arguments of a launch: the kernel's own flag PDL and Triton's, where the GPU has it.

    Every program of such a kernel must call gdc_wait() before it touches anything but constants
    such as weights. It may let the next kernel start before that, whose wait includes this one's.
    """
    if tensor.is_cuda and _is_hopper_or_later(tensor.device):
        return {"PDL": True, "launch_pdl": True}
    return {"PDL": False}


@lru_cache
def _is_hopper_or_later(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Wait for the kernel before, and let the next one start."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
