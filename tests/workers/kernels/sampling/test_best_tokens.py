"""Greedy sampling by the kernels."""

import torch

from tests.workers.sampling.sampling_rows import UNCOUNTED, rows
from workers.kernels.sampling.logit_rows import TILE
from workers.sampling import cuda


def test_the_best_is_the_first_among_equals(device: torch.device, dtype: torch.dtype) -> None:
    logits = torch.full((5, 2 * TILE + 9), -5.0)
    logits[0, -1] = 1.0
    logits[1, [17, 400, TILE + 3]] = 2.0
    logits[2] = 0.0
    logits[3, [TILE - 1, TILE]] = -0.5
    logits[4] = -torch.inf
    logits[4, [TILE + 1, 2 * TILE]] = torch.tensor([-0.0, 0.0])
    tokens = cuda.sample(logits.to(device, dtype), rows(5, temperature=0), None, UNCOUNTED, None)
    assert tokens.tolist() == [2 * TILE + 8, 17, 0, TILE - 1, TILE + 1]
