"""Products of experts from their filled weights: one kernel on CUDA, one after another on a CPU."""

from itertools import pairwise

import torch

from workers.contract.model_config import ModelConfigError
from workers.kernels.linear.fused import Fp8Weight, Mxfp4Weight
from workers.layers import fp8_method, mxfp4_method
from workers.layers.activations import fused_gate
from workers.layers.dense_method import DenseProduct
from workers.layers.layer import Placement
from workers.layers.linear_method import Filled, GroupedProduct, Groups, LinearShape, Weight


def grouped_product(
    filled: Filled, shape: LinearShape, placement: Placement, experts: int
) -> GroupedProduct:
    """The product of a layer whose members are in equal parts those of each expert. Raises
    ModelConfigError where the GPU has no kernel."""
    if (kernels := placement.expert_kernels) is None:
        return LoopedProduct(filled, shape, placement.dtype, experts)
    gate, obstacle = fused_gate(shape.gate), None
    if isinstance(filled.weight, Fp8Weight):
        obstacle = kernels.fp8_obstacle(placement.device)
    if shape.gate is not None and gate is None:
        obstacle = "its activation has no kernel"
    if obstacle is not None:
        raise ModelConfigError(f"{next(iter(shape.members))}: {obstacle}; a CPU would do")
    return kernels.product(filled.weight, filled.bias, gate, placement.dtype, experts)


class LoopedProduct:
    """A `DenseProduct` for each expert, whose weight is dequantised."""

    def __init__(
        self, filled: Filled, shape: LinearShape, dtype: torch.dtype, experts: int
    ) -> None:
        weight, bias = filled
        biases = [None] * experts if bias is None else bias.chunk(experts)
        self._experts = [
            DenseProduct(_wide(own, dtype), own_bias, None, shape)
            for own, own_bias in zip(_divided(weight, experts), biases, strict=True)
        ]

    def of_tokens(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        tokens = groups.order.div(groups.active, rounding_mode="floor")
        return self._multiply(rows.index_select(0, tokens), groups)

    def of_pairs(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        product = self._multiply(rows, groups)
        return torch.empty_like(product).index_copy_(0, groups.order, product)

    def _multiply(self, rows: torch.Tensor, groups: Groups) -> torch.Tensor:
        ends: list[int] = groups.ends.numpy().tolist()
        bounds = zip(self._experts, pairwise([0, *ends]), strict=True)
        return torch.cat(
            [expert(rows[start:end]) for expert, (start, end) in bounds if end > start]
        )


def _divided(weight: Weight, experts: int) -> list[Weight]:
    """Each expert's part."""
    if isinstance(weight, torch.Tensor):
        return [*weight.chunk(experts)]
    pairs = zip(weight[0].chunk(experts), weight[1].chunk(experts), strict=True)
    return [type(weight)(*pair) for pair in pairs]


def _wide(weight: Weight, dtype: torch.dtype) -> torch.Tensor:
    match weight:
        case Fp8Weight():
            return fp8_method.dequantised(weight, dtype)
        case Mxfp4Weight():
            return mxfp4_method.dequantised(weight, dtype)
        case _:
            return weight
