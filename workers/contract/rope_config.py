"""Rotary position embedding, and how its frequencies are scaled for longer texts (no torch)."""

import math

import msgspec


class LinearScaling(msgspec.Struct, frozen=True, kw_only=True, tag="linear"):
    """Every frequency is divided by `factor`."""

    factor: float


class Llama3Scaling(msgspec.Struct, frozen=True, kw_only=True, tag="llama3"):
    """Llama 3.1's: by wavelength, relative to `original_max_position`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


class YarnScaling(msgspec.Struct, frozen=True, kw_only=True, tag="yarn"):
    """YaRN (Peng et al. 2023, arXiv:2309.00071): by turns over `original_max_position` tokens.

    Dimensions with more than `beta_fast` turns are left alone, those with less than `beta_slow` are
    divided by `factor`. With `truncate` the two bounds are whole dimensions. What is rotated is
    multiplied by `attention_factor`.
    """

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float


class LongScaling(msgspec.Struct, frozen=True, kw_only=True, tag="longrope"):
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753): a divisor for each pair of dimensions.

    A model that is served for at most `original_max_position` tokens has the short ones, any other
    the long ones, for short texts too: a cache of keys cannot change. What is rotated is multiplied
    by `attention_factor`.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_position: int
    attention_factor: float

    def factors(self, length: int) -> tuple[float, ...]:
        """Those of a model that is served for texts of at most `length` tokens."""
        return self.short_factors if length <= self.original_max_position else self.long_factors


class DynamicScaling(msgspec.Struct, frozen=True, kw_only=True, tag="dynamic"):
    """Dynamic NTK: none up to `original_max_position` tokens, and no more than those are served,
    since beyond them the frequencies depend on the longest text of a batch."""

    original_max_position: int


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongScaling | DynamicScaling


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position embedding with base `theta`; `fraction` is the part of each attention head
    that is rotated, from its first dimension on."""

    theta: float = 10_000.0
    fraction: float = 1.0
    scaling: RopeScaling | None = None

    def rotary_dim(self, head_dim: int) -> int:
        """The dimensions of an attention head that are rotated."""
        return int(head_dim * self.fraction)

    @property
    def attention_factor(self) -> float:
        """What rotated dimensions are multiplied by."""
        match self.scaling:
            case YarnScaling(attention_factor=factor) | LongScaling(attention_factor=factor):
                return factor
            case _:
                return 1.0

    def limit(self, declared: int) -> int:
        """The most tokens of a text in a model that declares a length: more with YaRN, whose factor
        extends it, and no more than the original length with dynamic NTK."""
        match self.scaling:
            case YarnScaling() as yarn:
                return max(declared, int(yarn.original_max_position * yarn.factor))
            case DynamicScaling() as dynamic:
                return min(declared, dynamic.original_max_position)
            case _:
                return declared


def yarn_attention_factor(
    factor: float, mscale: float | None = None, mscale_all_dim: float | None = None
) -> float:
    """The attention factor of a YaRN that names none (as transformers has it)."""
    if mscale and mscale_all_dim:
        return _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def long_attention_factor(factor: float, original_max_position: int) -> float:
    """The attention factor of a LongRoPE that names none (as transformers has it)."""
    if factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_max_position))
