"""How a model's linear layers are quantised (no torch)."""

import re
from typing import Literal

import msgspec

WeightScales = Literal["tensor", "channel", "block"]
ActivationScales = Literal["tensor", "token", "block"]
QuantizationMethod = Literal["fp8"]
"""What `--quantization` makes as weights are loaded."""

BLOCK = 128
"""Rows and inputs of a block of weights with one scale, and inputs of a block of activations."""

FP8_DEVICES = frozenset({"cuda"})
"""Devices with products that read weights in FP8. For others they are dequantised as they are
loaded."""


class Quantization(msgspec.Struct, frozen=True, kw_only=True):
    """Linear layers whose weights are in FP8 (E4M3), each times a scale.

    method       as the tool that made the files calls it, or of `--quantization`
    stored       the checkpoint holds FP8; otherwise it is made as weights are loaded
    weights      what has one scale: a tensor, an output channel, or a block of 128 x 128
    activations  what has one: a tensor (then it is stored), a token, or 128 inputs of one
    scale_names  of a layer's tensors: the scales of weights, and the stored one of activations
    most_amax    bound on the largest number of a token from which its scale is computed
    targets      regular expressions, one of which matches the beginning of a layer's name, as the
                 checkpoint has it
    ignored      those of layers that are not in FP8
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
        """Whether any layer has weights in FP8."""
        return bool(self.targets)

    def keeps(self, *names: str) -> bool:
        """Whether the linear layer that has these names has weights in FP8. The heads behind a
        model's layers never have."""
        return _any_match(self.targets, names) and not _any_match(self.ignored, names)

    def __str__(self) -> str:
        scales = f"a scale for each {self.weights}, activations for each {self.activations}"
        return f"{self.method}: weights in FP8, {scales}"


def _any_match(patterns: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return any(re.match(pattern, name) for pattern in patterns for name in names)


FROM_16_BITS = Quantization(method="fp8", stored=False, weights="channel", activations="token")
"""`--quantization fp8`."""
