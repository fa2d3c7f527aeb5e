"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

Dimension i of an attention head is paired with dimension i + D/2, as in Llama checkpoints.
"""

import math
from typing import NamedTuple

import torch

from workers.contract.attention_kind import RopeConfig
from workers.layers.placement import Placement


class Rotation(NamedTuple):
    """The rotation of each token of a step: [T', 1, D] each; `sin` includes the signs."""

    cos: torch.Tensor
    sin: torch.Tensor


class RotaryEmbedding:
    """Rotations of positions [0, max_position).

    table  float32[max_position, D], for kernels: the cosines of D/2 angles, then their sines
    """

    table: torch.Tensor

    def __init__(
        self, rope: RopeConfig, head_dim: int, max_position: int, placement: Placement
    ) -> None:
        frequencies = rope_frequencies(rope, head_dim)
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), frequencies)
        cos, sin = angles.cos(), angles.sin()
        self.table = torch.cat((cos, sin), dim=1).to(placement.device)
        if placement.kernels is None:
            rotations = torch.stack((torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)), dim=1)
            self._rotations = rotations.to(placement.dtype)

    def __call__(self, positions: torch.Tensor) -> Rotation:
        """Positions int64[T'] -> the rotation of each. Only on devices without fused kernels."""
        rows = self._rotations[positions]
        return Rotation(cos=rows[:, :1], sin=rows[:, 1:])


def rotate(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate every attention head of `heads` [T', H, D] by its token's rotation."""
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return torch.addcmul(heads * rotation.cos, swapped, rotation.sin)


def rope_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per position for each pair of dimensions: float32[head_dim / 2].

    `llama3` (Llama 3.1's context extension) divides the frequency of wavelengths beyond
    `original_max_position / low_freq_factor` by `factor`, leaves those below
    `original_max_position / high_freq_factor` alone, and blends the two linearly in between.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.type == "linear":
        return frequencies / rope.factor
    if rope.type == "llama3":
        turns = rope.original_max_position * frequencies / (2 * math.pi)
        band = rope.high_freq_factor - rope.low_freq_factor
        kept = ((turns - rope.low_freq_factor) / band).clamp(0, 1)
        return frequencies * kept + frequencies / rope.factor * (1 - kept)
    return frequencies
