"""Rows in FP8 (e4m3) for a product whose weight is in FP8, with what comes before the product.

A number is its e4m3 value times its scale. Rows are first rounded as the kernels in `rowwise` round
them: the product's inputs do not depend on what is fused.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from workers.kernels.dependent_launch import pdl, wait_for_previous

GROUP = 128
"""Inputs that share a scale, in a weight's blocks and in the rows that such a weight multiplies."""


_MULTIPLE = 16
"""cuBLAS multiplies by blocks only if the rows are a multiple of some number: 1 and 17 are none."""


class QuantizedRows(NamedTuple):
    """`values` [N, D] in e4m3, and their scales in float32: [N, 1], or [N, ceil(D / 128)] with the
    rows adjacent in memory, as cuBLAS reads them."""

    values: torch.Tensor
    scales: torch.Tensor

    def padded(self) -> "QuantizedRows":
        """Rows with scales of groups, and others behind them: a multiple of 16 in all."""
        (_, size), stored = self.values.shape, self.scales.stride(1)
        values = self.values.as_strided((stored, size), (size, 1))
        return QuantizedRows(
            values, self.scales.as_strided((stored, -(-size // GROUP)), (1, stored))
        )


def quantize(
    rows: torch.Tensor,
    *,
    norm: tuple[torch.Tensor, float] | None = None,
    scale: torch.Tensor | None = None,
    grouped: bool = False,
    most_amax: float | None = None,
) -> QuantizedRows:
    """[N, D] in e4m3 with a scale a row, a scale for each 128 numbers of a row if `grouped`, or the
    static `scale` [], beyond which numbers saturate. NaN stays NaN.

    `norm` is an RMSNorm's weight [D] and epsilon, applied first. A number counts at most
    `most_amax` for a scale.
    """
    count, size = rows.shape
    stored = count + -count % _MULTIPLE if grouped else count
    values = torch.empty((stored, size), dtype=torch.float8_e4m3fn, device=rows.device)
    block = 1 << (max(size, GROUP) - 1).bit_length()
    group = GROUP if grouped else block
    scales = rows.new_empty((-(-size // group), stored), dtype=torch.float32).t()
    weight, eps = norm or (rows, 0.0)
    _quantize[(count,)](
        rows,
        weight,
        weight if scale is None else scale,
        values,
        scales,
        rows.stride(0),
        stored,
        eps,
        math.inf if most_amax is None else most_amax,
        NORM=norm is not None,
        STATIC=scale is not None,
        GROUP=group,
        SIZE=size,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
        **pdl(rows),
    )
    if not grouped:
        return QuantizedRows(values, scales.view(count, 1))
    return QuantizedRows(values[:count], scales[:count])


@triton.jit(do_not_specialize=["stored", "bound"])
def _quantize(
    rows, weight, given, values, scales, stride, stored, eps, bound,
    NORM: tl.constexpr, STATIC: tl.constexpr, GROUP: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    if NORM:
        factors = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    numbers = tl.load(rows + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        numbers *= tl.rsqrt(tl.sum(numbers * numbers, axis=0) / SIZE + eps) * factors
    groups = numbers.to(rows.dtype.element_ty).to(tl.float32).reshape(BLOCK // GROUP, GROUP)
    if STATIC:
        scale = tl.zeros((BLOCK // GROUP,), tl.float32) + tl.load(given)
    else:
        # Zeros need a scale too, any but zero.
        largest = tl.maximum(tl.max(tl.abs(groups), axis=1), 1e-10)
        scale = tl.minimum(largest, bound) / 448.0
    group = tl.arange(0, BLOCK // GROUP)
    tl.store(scales + group * stored + row, scale, mask=group * GROUP < SIZE)
    nan: tl.constexpr = tl.PropagateNan.ALL
    scaled = tl.maximum(groups / scale[:, None], -448.0, propagate_nan=nan)
    scaled = tl.minimum(scaled, 448.0, propagate_nan=nan).reshape(BLOCK)
    tl.store(values + row * SIZE + columns, scaled.to(values.dtype.element_ty), mask=inside)
