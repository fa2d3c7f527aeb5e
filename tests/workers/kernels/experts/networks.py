"""Feed-forward networks of experts, the same on a CPU in float32 and with the kernels."""

from dataclasses import replace as replace_placement
from typing import Literal

import torch
from msgspec.structs import replace

from tests.workers.kernels.cases import drawn
from workers.contract.experts import Clamp, ExpertsConfig
from workers.contract.model_config import DecoderConfig
from workers.contract.quantization import FROM_16_BITS, Quantization
from workers.layers.layer import Placement
from workers.models.feed_forward import MixedFeedForward
from workers.weights.loader import fill_randomly

SIZE = 256
Kind = Literal["plain", "shared", "groups", "clamped", "fp8", "fp8_blocks", "mxfp4"]
_PLAIN = ExpertsConfig(count=12, active=3, size=128)
CONFIGS: dict[Kind, ExpertsConfig] = {
    "plain": _PLAIN,
    "shared": replace(_PLAIN, shared_size=96, shared_gate=True, normalised=False),
    "groups": replace(_PLAIN, scoring="sigmoid", groups=4, active_groups=2, correction=True),
    "clamped": replace(_PLAIN, scoring="chosen", bias=True, router_bias=True, clamp=Clamp()),
    "fp8": _PLAIN,
    "fp8_blocks": _PLAIN,
    "mxfp4": replace(_PLAIN, scoring="chosen", bias=True, clamp=Clamp(), stacking="pairs"),
}
_QUANTIZED: dict[Kind, Quantization] = {
    "fp8": FROM_16_BITS,
    "fp8_blocks": Quantization(method="fp8", weights="block", activations="block"),
    "mxfp4": Quantization(method="mxfp4", weights="group", activations="none"),
}


def network(kind: Kind, placement: Placement) -> MixedFeedForward:
    """Filled with the same numbers on every device."""
    experts = CONFIGS[kind]
    family = DecoderConfig(hidden_act="silu", norm_eps=1e-6, experts=experts)
    quantization = _QUANTIZED.get(kind)
    plain = Placement(torch.device("cpu"), torch.float32, quantization=quantization)
    source = MixedFeedForward(SIZE, experts, family, "mlp", plain).weights()
    fill_randomly(source)
    own = replace_placement(placement, quantization=quantization)
    own_network = MixedFeedForward(SIZE, experts, family, "mlp", own)
    for name, weight in own_network.weights().items():
        weight.copy_(source[name])
    own_network.pack()
    return own_network


def rows_of(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return drawn(count, SIZE, dtype=dtype, device=device)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float().cpu() - want).norm() / want.norm())


def bound(kind: Kind) -> float:
    """Rows are rounded to FP8 for weights in FP8, to 16 bits for others."""
    return 6e-2 if kind.startswith("fp8") else 1e-2
