"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) of R dimensions of each attention
head: the first ones, i paired with i + R/2 as in Llama checkpoints, or with a proportional fraction
those of the first R/2 pairs of a whole head."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F

from workers.contract.model_config import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeConfig,
    YarnScaling,
)
from workers.layers.layer import Placement


def rope_frequencies(rope: RopeConfig, head_dim: int, length: int) -> torch.Tensor:
    """Radians per position for each rotated pair of dimensions, float32[R / 2], for texts of up to
    `length` tokens."""
    whole = rope.whole_dim(head_dim)
    exponents = torch.arange(0, rope.rotary_dim(head_dim), 2, dtype=torch.int64).float() / whole
    frequencies = 1.0 / rope.theta**exponents
    match rope.scaling:
        case LinearScaling(factor=factor):
            return frequencies / factor
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling)
        case YarnScaling() as scaling:
            return _yarn(frequencies, scaling, rope.theta)
        case LongScaling() as scaling:
            return frequencies / torch.tensor(scaling.factors(length))
        case _:
            return frequencies


def _llama3(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Divide the frequencies of long wavelengths by `factor`: all beyond `original_max_position /
    low_freq_factor`, none below that by `high_freq_factor`, with a linear blend in between."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    band = scaling.high_freq_factor - scaling.low_freq_factor
    return _blend(frequencies, scaling.factor, (turns - scaling.low_freq_factor) / band)


def _yarn(frequencies: torch.Tensor, scaling: YarnScaling, theta: float) -> torch.Tensor:
    """Blends linearly between the pairs that make `beta_fast` and `beta_slow` turns over the
    original length."""
    pairs = len(frequencies)

    def pair_of(turns: float) -> float:
        per_turn = scaling.original_max_position / (2 * math.pi * turns)
        return pairs * math.log(per_turn) / math.log(theta)

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    width = 0.001 if low == high else high - low  # as transformers avoids a division by 0
    ramp = (torch.arange(pairs, dtype=torch.float32) - low) / width
    return _blend(frequencies, scaling.factor, 1 - ramp)


def _blend(frequencies: torch.Tensor, factor: float, kept: torch.Tensor) -> torch.Tensor:
    """Mix the frequencies (by `kept`, cut to [0, 1]) with those divided by `factor`."""
    kept = kept.clamp(0, 1)
    return frequencies * kept + frequencies / factor * (1 - kept)


Rotation = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, with signs, of each token of a step: [T', 1, W] each, W being the dimensions
to which pairs belong."""


class RotationTable(NamedTuple):
    """Rotations of positions [0, length), for kernels.

    table          float32[length, R]: the cosines of R/2 angles, then their sines
    apart          dimensions between the two of a pair, W/2
    query_factors  float32[length] for rotated queries, if these grow with their positions
    """

    table: torch.Tensor
    apart: int
    query_factors: torch.Tensor | None = None


class RotaryEmbedding:
    """Rotations of positions [0, length), times the attention factor of a scaling that has one.
    `query_factors` and what kernels take (`on_device`) are as in `RotationTable`."""

    query_factors: torch.Tensor | None = None

    def __init__(self, rope: RopeConfig, head_dim: int, length: int, placement: Placement) -> None:
        frequencies = rope_frequencies(rope, head_dim, length)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
        cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
        table, whole = torch.cat((cos, sin), dim=1).to(placement.device), rope.whole_dim(head_dim)
        if growth := rope.query_growth:
            turns = torch.arange(length) // growth.period
            self.query_factors = (1 + growth.beta * torch.log(1 + turns)).to(placement.device)
        self.on_device = RotationTable(table, whole // 2, self.query_factors)
        if placement.kernels is None:
            still = 0, whole // 2 - cos.shape[1]
            cos, sin = F.pad(cos, still, value=1.0), F.pad(sin, still)
            rotations = torch.stack((torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)), dim=1)
            self._rotations = rotations.to(placement.dtype)

    def __call__(self, positions: torch.Tensor) -> Rotation:
        """The rotation of each of `positions` int64[T'], on devices without fused kernels."""
        rows = self._rotations[positions]
        return rows[:, :1], rows[:, 1:]


def rotate(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate every attention head of `heads` [T', H, D] by its token's rotation."""
    cos, sin = rotation
    size = cos.shape[-1]
    turning = heads[..., :size]
    turned = torch.addcmul(turning * cos, turning.roll(size // 2, dims=-1), sin)
    return turned if size == heads.shape[-1] else torch.cat((turned, heads[..., size:]), dim=-1)
