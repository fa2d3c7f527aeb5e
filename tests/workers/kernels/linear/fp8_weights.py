"""FP8 weights of tests, with scales that differ, and what they are in float32."""

from typing import Literal

import torch
import torch.nn.functional as F

from tests.workers.kernels.cases import drawn
from workers.kernels.linear.fused import Fp8Weight
from workers.kernels.linear.quantized_rows import GROUP, QuantizedRows

Scaled = Literal["outputs", "blocks"]


def fp8_weight(
    out_features: int, in_features: int, scaled: Scaled, device: torch.device
) -> Fp8Weight:
    """Products with normal rows have a variance of about 1."""
    shape = [out_features]
    if scaled == "blocks":
        shape = [-(-out_features // GROUP), -(-in_features // GROUP)]
    values = 40 * drawn(out_features, in_features, dtype=torch.float32, device=device)
    scales = torch.rand(shape).to(device) + 0.5
    return Fp8Weight(values.to(torch.float8_e4m3fn), scales * in_features**-0.5 / 40)


def dequantized(weight: Fp8Weight) -> torch.Tensor:
    """[out, in] in float32."""
    values, scales = weight.values.float(), weight.scales
    if scales.dim() == 1:
        return values * scales[:, None]
    blocks = scales.repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)
    return values * blocks[: len(values), : values.shape[1]]


def dequantized_rows(rows: QuantizedRows) -> torch.Tensor:
    """[N, D] in float32."""
    values, scales = rows.values.float(), rows.scales
    if scales.shape[1] > 1:
        scales = scales.repeat_interleave(GROUP, 1)[:, : values.shape[1]]
    return values * scales


def quantized(rows: torch.Tensor, *, grouped: bool) -> QuantizedRows:
    """`rows` [N, D] in float32, quantised by torch."""
    group = GROUP if grouped else rows.shape[1]
    groups = F.pad(rows, (0, -rows.shape[1] % group)).unflatten(1, (-1, group))
    scales = groups.abs().amax(dim=2) / 448
    values = (groups / scales[:, :, None]).to(torch.float8_e4m3fn).flatten(1)[:, : rows.shape[1]]
    return QuantizedRows(values.contiguous(), scales.t().contiguous().t() if grouped else scales)
