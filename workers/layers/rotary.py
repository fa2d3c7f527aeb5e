"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

Of an attention head's first R dimensions, i is paired with i + R/2, as in Llama checkpoints; the
others, if there are any, are not rotated.
"""

from typing import NamedTuple

import torch

from workers.contract.model_config import RopeConfig
from workers.layers.placement import Placement
from workers.layers.rope_frequencies import rope_frequencies


class Rotation(NamedTuple):
    """The rotation of each token of a step: [T', 1, R] each; `sin` includes the signs."""

    cos: torch.Tensor
    sin: torch.Tensor


class RotaryEmbedding:
    """Rotations of positions [0, length), times the attention factor of a scaling that has one.

    table  float32[length, R], for kernels: the cosines of R/2 angles, then their sines
    """

    table: torch.Tensor

    def __init__(self, rope: RopeConfig, head_dim: int, length: int, placement: Placement) -> None:
        """`length` is the most tokens of a text that is served: `max_model_len`."""
        frequencies = rope_frequencies(rope, head_dim, length)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
        cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
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
    size = rotation.cos.shape[-1]
    turning = heads[..., :size]
    swapped = turning.roll(size // 2, dims=-1)
    turned = torch.addcmul(turning * rotation.cos, swapped, rotation.sin)
    return turned if size == heads.shape[-1] else torch.cat((turned, heads[..., size:]), dim=-1)
