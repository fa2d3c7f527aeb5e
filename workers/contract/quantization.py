"""How a model's linear layers are quantised (no torch)."""

import re
from functools import lru_cache
from typing import Literal

import msgspec

WeightScales = Literal["tensor", "channel", "block", "group"]
ActivationScales = Literal["tensor", "token", "block", "none"]
QuantizationMethod = Literal["fp8"]
"""What `--quantization` makes as weights are loaded."""

BLOCK = 128
"""Rows and inputs of a block of weights with one scale, and inputs of a block of activations."""

FP4_GROUP = 32
"""Inputs of an output that have a scale in MXFP4."""

FP4_LARGEST_SCALE = 192
"""The largest byte of a scale in MXFP4 that is served, 2 ** 65. 255 is NaN."""

FP4_BYTES = 0.5 + 1 / FP4_GROUP
"""Bytes of a number in MXFP4, with its share of a scale."""

FP8_DEVICES = frozenset({"cuda"})
"""Devices with products that read weights in FP8 and MXFP4. For others they are dequantised as they
are loaded."""


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """Linear layers whose weights are in FP8 (E4M3) or MXFP4, each times a scale.

    method       as the tool that made the files calls it, or of `--quantization`
    stored       the checkpoint holds such weights; otherwise it is made as weights are loaded
    weights      what has one scale: a tensor, an output channel, or a block of 128 x 128; in MXFP4
                 a group of 32 inputs
    activations  what has one: a tensor (then it is stored), a token, or 128 inputs of one; with
                 none they stay as they are
    scale_names  of a layer's tensors: the scales of weights, and the stored one of activations
    most_amax    bound on the largest number of a token from which its scale is computed
    targets      regular expressions, one of which matches the beginning of a layer's name, as the
                 checkpoint has it
    ignored      those of layers that are not quantised
    kv_cache_fp8 keys and values are to be in FP8 too
    """

    method: str
    stored: bool = True
    weights: WeightScales
    activations: ActivationScales
    scale_names: tuple[str, str] = ("weight_scale", "input_scale")
    most_amax: float | None = None
    targets: tuple[str, ...] = ("",)
    ignored: tuple[str, ...] = ()
    kv_cache_fp8: bool = False

    @property
    def of_weights(self) -> bool:
        """Whether any layer has such weights."""
        return bool(self.targets)

    def keeps(self, *names: str) -> bool:
        """Whether the linear layer that has these names has such weights. The heads behind a
        model's layers, and routers, never have."""
        return _any_match(self.targets, names) and not _any_match(self.ignored, names)

    @property
    def in_fp4(self) -> bool:
        return self.weights == "group"

    @property
    def weight_dtype(self) -> str:
        return "MXFP4" if self.in_fp4 else "FP8"

    def __str__(self) -> str:
        of_inputs = f"{FP4_GROUP} inputs"
        of_others = f"{self.weights}, activations for each {self.activations}"
        scales = of_inputs if self.in_fp4 else of_others
        return f"{self.method}: weights in {self.weight_dtype}, a scale for each {scales}"


def _any_match(patterns: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return any(pattern.match(name) for name in {*names} for pattern in _compiled(patterns))


@lru_cache
def _compiled(patterns: tuple[str, ...]) -> list[re.Pattern[str]]:
    """Once: models with experts have tens of thousands of names."""
    return [re.compile(pattern) for pattern in patterns]


FROM_16_BITS = Quantization(method="fp8", stored=False, weights="channel", activations="token")
"""`--quantization fp8`."""
