"""Random operands of a kernel."""

import torch


def drawn(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Normal numbers, the same in every run of a test (`conftest.py` seeds them)."""
    return torch.randn(shape).to(device, dtype)
