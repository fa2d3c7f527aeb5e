"""Logits that the sampling kernels are tested on."""

import torch

VOCABULARY = 2100
"""Two tiles, of 16 groups of 128 and of a rest."""


def logits_of(count: int, seed: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Every other row full of equals."""
    logits = torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    logits[::2] = logits[::2].round()
    return logits.to(device, dtype)
