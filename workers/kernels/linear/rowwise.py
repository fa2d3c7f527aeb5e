"""Kernels that read each row once: embedding lookup, RMSNorm, LayerNorm, a gate's activation."""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl

from workers.device.tuning import ACTIVATION_MUL_BLOCK
from workers.kernels.dependent_launch import pdl, wait_for_previous
from workers.kernels.linear.fused import FusedActivation


def embedding(ids: torch.Tensor, weight: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """weight[ids] * scale, rounded once: int64[N], [count, size] contiguous -> [N, size]."""
    count, size = len(ids), weight.shape[1]
    out = torch.empty((count, size), dtype=weight.dtype, device=weight.device)
    block = triton.next_power_of_2(size)
    _embed[(count,)](
        ids,
        weight,
        out,
        scale,
        SCALED=scale != 1,
        SIZE=size,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 8),
        **pdl(weight),
    )
    return out


@triton.jit(do_not_specialize=["ids"])
def _embed(
    ids, weight, out, scale,
    SCALED: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    values = tl.load(weight + tl.load(ids + row) * SIZE + columns, mask=inside)
    if SCALED:
        values = (values.to(tl.float32) * scale).to(values.dtype)
    tl.store(out + row * SIZE + columns, values, mask=inside)


def rms_norm(
    rows: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """x / rms(x) * w (Zhang and Sennrich 2019, arXiv:1910.07467): [N, D] -> [N, D] in rows' dtype.
    Computed in float32, rounded once. A `residual`, contiguous, is returned with the sum."""
    count, size = rows.shape
    out = rows.new_empty(rows.shape) if residual is None else residual
    block = triton.next_power_of_2(size)
    _rms_norm[(count,)](
        rows,
        weight,
        out,
        rows.stride(0),
        eps,
        ADD=residual is not None,
        SIZE=size,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
        **pdl(rows),
    )
    return out


@triton.jit
def _rms_norm(
    rows, weight, out, stride, eps, ADD: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    values = tl.load(rows + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    target = out + row * SIZE + columns
    if ADD:
        before = tl.load(target, mask=inside, other=0.0).to(tl.float32)
    scales = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values, axis=0) / SIZE + eps)
    normed = values * inverse * scales
    if ADD:
        normed += before
    tl.store(target, normed.to(out.dtype.element_ty), mask=inside)


def layer_norm(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """LayerNorm (Ba et al. 2016, arXiv:1607.06450) of rows, or of residual + rows: [N, D],
    contiguous. Computed in float32, rounded once."""
    count, size = rows.shape
    out = torch.empty_like(rows)
    block = triton.next_power_of_2(size)
    _layer_norm[(count,)](
        rows if residual is None else residual,
        rows,
        weight,
        weight if bias is None else bias,
        out,
        eps,
        ADD=residual is not None,
        BIAS=bias is not None,
        SIZE=size,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
        **pdl(rows),
    )
    return out


@triton.jit
def _layer_norm(
    residual, rows, weight, bias, out, eps, ADD: tl.constexpr, BIAS: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    scales = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(PDL)
    own = tl.program_id(0).to(tl.int64) * SIZE + columns
    total = tl.load(rows + own, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        total += tl.load(residual + own, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, total - tl.sum(total, axis=0) / SIZE, 0.0)
    variance = tl.sum(centred * centred, axis=0) / SIZE
    normed = centred * tl.rsqrt(variance + eps) * scales
    if BIAS:
        normed += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + own, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def activated(values, FUNCTION: tl.constexpr):
    """FUNCTION, a `FusedActivation`, of values in float32."""
    if FUNCTION == "silu":
        result = values / (1 + tl.exp(-values))
    elif FUNCTION == "gelu":
        result = 0.5 * values * (1 + tl.erf(values * 0.7071067811865476))
    else:
        tl.static_assert(FUNCTION == "gelu_tanh")
        # (1 + tanh(u)) / 2 is the sigmoid of 2 u, where u = sqrt(2 / pi) (x + 0.044715 x^3).
        twice = 1.5957691216057308 * (values + 0.044715 * values * values * values)
        result = values / (1 + tl.exp(-twice))
    return result


def activation_mul(gate_up: torch.Tensor, function: FusedActivation) -> torch.Tensor:
    """f(gate) * up (Shazeer 2020, arXiv:2002.05202): [N, 2 F], gate first, -> [N, F]."""
    count, width = gate_up.shape
    out = torch.empty((count, width // 2), dtype=gate_up.dtype, device=gate_up.device)
    _activation_mul[(count, triton.cdiv(width // 2, ACTIVATION_MUL_BLOCK))](
        gate_up,
        out,
        gate_up.stride(0),
        SIZE=width // 2,
        FUNCTION=function,
        BLOCK=ACTIVATION_MUL_BLOCK,
        num_warps=4,
        **pdl(gate_up),
    )
    return out


@triton.jit
def _activation_mul(
    gate_up, out, stride, SIZE: tl.constexpr, FUNCTION: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gates = gate_up + row * stride + columns
    gate = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gates + SIZE, mask=inside, other=0.0).to(tl.float32)
    product = activated(gate, FUNCTION) * up
    tl.store(out + row * SIZE + columns, product.to(out.dtype.element_ty), mask=inside)
