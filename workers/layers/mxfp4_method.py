"""Weights in MXFP4 (OCP Microscaling Formats 1.0, 5.3.3): numbers of 4 bits, E2M1.

Each 32 inputs of an output have a scale, a power of two.
"""

import torch

from workers.contract.model_config import ModelConfigError
from workers.contract.quantization import FP4_GROUP
from workers.kernels.linear.fused import Mxfp4Weight
from workers.layers.dense_method import DenseProduct
from workers.layers.layer import Placement
from workers.layers.linear_method import Filled, LinearShape, Product

_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_BIAS = 127


def dequantised(weight: Mxfp4Weight, dtype: torch.dtype) -> torch.Tensor:
    """The weight [out, in] in another type, exactly in any with 8 bits of exponent."""
    numbers = torch.tensor(_NUMBERS, device=weight.blocks.device)
    blocks = weight.blocks.int()
    wide = torch.stack([numbers[blocks & 15], numbers[blocks >> 4]], dim=-1)
    scaled = wide.view(*weight.scales.shape, FP4_GROUP)
    powers = (weight.scales.int() - _BIAS).unsqueeze(-1)
    return torch.ldexp(scaled, powers).flatten(1).to(dtype)


class Mxfp4Method:
    """Two numbers a byte, the first in its lower half, as gpt-oss's checkpoints have them."""

    def __init__(self, shape: LinearShape, placement: Placement) -> None:
        """Raises ModelConfigError for inputs that are not whole groups."""
        self._shape, self._placement = shape, placement
        out, inputs = shape.out_features, shape.in_features
        if inputs % FP4_GROUP:
            reason = f"has {inputs} inputs, not whole groups of {FP4_GROUP}"
            raise ModelConfigError(f"{next(iter(shape.members))} {reason}, as MXFP4 needs")
        self._weight = Mxfp4Weight(
            placement.empty(out, inputs // 2, dtype=torch.uint8),
            placement.empty(out, inputs // FP4_GROUP, dtype=torch.uint8),
        )
        self._bias = placement.empty(out) if shape.bias else None

    def weights(self) -> dict[str, torch.Tensor]:
        sizes = [*self._shape.members.values()]
        parts = {"weight_blocks": self._weight.blocks, "weight_scales": self._weight.scales}
        parts |= {} if self._bias is None else {"bias": self._bias}
        return self._shape.named(
            **{kind: torch.split(whole, sizes) for kind, whole in parts.items()}
        )

    def added_bytes(self, fp8_item_bytes: int) -> int:
        if fp8_item_bytes == 1:  # where FP8 stays as it is, MXFP4 does
            return 0
        blocks, scales = self._weight
        return blocks.numel() * (2 * fp8_item_bytes - 1) - scales.numel()

    def pack(self) -> Product:
        weight = dequantised(self._weight, self._placement.dtype)
        return DenseProduct(weight, self._bias, None, self._shape)

    def filled(self) -> Filled:
        return Filled(self._weight, self._bias)
