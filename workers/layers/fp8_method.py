"""Weights in FP8 (E4M3), each times a scale of its tensor, its row, or a block of 128 x 128.

Members of a fused product keep their own scales: those of whole tensors become one a row, exactly,
and no weight is rounded again.
"""

from itertools import pairwise

import torch

from workers.contract.model_config import ModelConfigError
from workers.contract.quantization import BLOCK, Quantization, WeightScales
from workers.kernels.linear.fused import Fp8Weight
from workers.layers.activations import FUSED, Activation
from workers.layers.dense_method import DenseProduct
from workers.layers.layer import Placement
from workers.layers.linear_method import Filled, LinearShape, Product
from workers.layers.norm import RMSNorm

FP8 = torch.float8_e4m3fn
FP8_MOST = torch.finfo(FP8).max
_LEAST_SCALE = 1e-12
"""That of a row of zeros."""
_ROWS = 1 << 13
"""Rows that are quantised together: in float32 the weights of all experts would take much."""


def dequantised(weight: Fp8Weight, dtype: torch.dtype) -> torch.Tensor:
    """The weight [out, in] in another type, rounded once."""
    scales, (rows, columns) = weight.scales.unsqueeze(1), weight.values.shape
    if weight.in_blocks:
        whole = weight.scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        scales = whole[:rows, :columns]
    return (weight.values.float() * scales).to(dtype)


def quantised(weight: torch.Tensor) -> Fp8Weight:
    """A weight [out, in] in FP8, with a scale for each row: its largest number becomes 448."""
    scales = (weight.abs().amax(dim=1).float() / FP8_MOST).clamp(min=_LEAST_SCALE)
    parts = zip(torch.split(weight, _ROWS), torch.split(scales[:, None], _ROWS), strict=True)
    numbers = [(part.float() / own).clamp(-FP8_MOST, FP8_MOST).to(FP8) for part, own in parts]
    return Fp8Weight(torch.cat(numbers), scales)


class Activated:
    """A product whose outputs go through a function."""

    def __init__(self, product: Product, function: Activation) -> None:
        self._product, self._function, self.add_to = product, function, product.add_to

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        return self._function(self._product(rows, norm))


class Fp8Method:
    """Weights of FP8 files, or in another type that FP8 is made from when they are packed."""

    def __init__(
        self, shape: LinearShape, placement: Placement, quantization: Quantization
    ) -> None:
        """Raises ModelConfigError for a member that does not end with a block, but for the last."""
        self._shape, self._placement, self._quantization = shape, placement, quantization
        out, inputs = shape.out_features, shape.in_features
        self._weight = placement.empty(out, inputs, dtype=FP8 if quantization.stored else None)
        self._bias = placement.empty(out) if shape.bias else None
        counts: dict[WeightScales, tuple[int, ...]] = {
            "tensor": (len(shape.members),),
            "channel": (out,),
            "block": (-(-out // BLOCK), -(-inputs // BLOCK)),
        }
        self._scales = placement.empty(*counts[quantization.weights], dtype=torch.float32)
        self._input_scales = placement.empty(len(shape.members), dtype=torch.float32)
        if quantization.weights == "block":
            for (name, rows), (other, _) in pairwise(shape.members.items()):
                if rows % BLOCK:
                    reason = f"{name} with {other} has {rows} rows, not whole blocks of {BLOCK}"
                    raise ModelConfigError(f"{reason}: quantization by block is not supported so")

    def weights(self) -> dict[str, torch.Tensor]:
        sizes, named = [*self._shape.members.values()], self._shape.named
        weights = named(weight=torch.split(self._weight, sizes))
        if self._bias is not None:
            weights |= named(bias=torch.split(self._bias, sizes))
        if not self._quantization.stored:
            return weights
        scales = self._scales.unbind()
        if self._quantization.weights != "tensor":
            step = BLOCK if self._quantization.weights == "block" else 1
            scales = torch.split(self._scales, [-(-size // step) for size in sizes])
        of_weights, of_inputs = self._quantization.scale_names
        weights |= named(**{of_weights: scales})
        if self._quantization.activations == "tensor":
            weights |= named(**{of_inputs: self._input_scales.unbind()})
        return weights

    def added_bytes(self, fp8_item_bytes: int) -> int:
        return self._weight.numel() * (fp8_item_bytes - self._weight.itemsize)

    def weight(self) -> Fp8Weight:
        """The members' filled weights as one."""
        if not self._quantization.stored:
            return quantised(self._weight)
        scales, sizes = self._scales, [*self._shape.members.values()]
        if self._quantization.weights == "tensor":
            scales = scales.repeat_interleave(torch.tensor(sizes, device=scales.device))
        static = self._quantization.activations == "tensor"
        largest = self._input_scales.amax() if static else None
        return Fp8Weight(self._weight, scales, largest, self._quantization.most_amax)

    def pack(self) -> Product:
        """Raises ModelConfigError where the GPU cannot multiply by the weight."""
        weight, shape, placement = self.weight(), self._shape, self._placement
        kernels, dtype, gate = placement.kernels, placement.dtype, shape.gate
        if kernels is None:
            return DenseProduct(dequantised(weight, dtype), self._bias, None, shape)
        fused = None if gate is None else FUSED.get(gate)
        obstacle = kernels.fp8_obstacle(weight, gated=fused is not None)
        if gate is not None and fused is None:
            obstacle = "its activation has no kernel"
        if obstacle:
            raise ModelConfigError(
                f"{next(iter(shape.members))} is in FP8: {obstacle}; a CPU, or weights in 16 bits, "
                "would do"
            )
        product = kernels.fp8_product(weight, self._bias, fused, dtype)
        return product if shape.function is None else Activated(product, shape.function)

    def filled(self) -> Filled:
        return Filled(self.weight(), self._bias)
