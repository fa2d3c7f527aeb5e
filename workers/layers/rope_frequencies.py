"""The frequencies of rotary position embedding, scaled as a model says."""

import math

import torch

from workers.contract.model_config import (
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    RopeConfig,
    YarnScaling,
)


def rope_frequencies(rope: RopeConfig, head_dim: int, length: int) -> torch.Tensor:
    """Radians per position for each rotated pair of dimensions: float32[R / 2], in a model that is
    served for texts of at most `length` tokens."""
    size = rope.rotary_dim(head_dim)
    exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
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
    """Divides the frequency of wavelengths beyond `original_max_position / low_freq_factor` by
    `factor`, leaves those below `original_max_position / high_freq_factor` alone, and blends the
    two linearly in between."""
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
    """What is `kept`, cut to [0, 1], of the frequencies, and the rest of those divided by
    `factor`."""
    kept = kept.clamp(0, 1)
    return frequencies * kept + frequencies / factor * (1 - kept)
