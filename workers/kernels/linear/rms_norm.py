"""RMSNorm, and its sum with a residual: one program a row."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.kernels.launch import pdl


def rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * w (Zhang and Sennrich 2019, arXiv:1910.07467): [N, D] -> [N, D] in rows' dtype.

    Computed in float32, rounded once.
    """
    out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    _launch(rows, weight, eps, out, add=False)
    return out


def add_rms_norm(
    residual: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Adds `rms_norm(rows, weight, eps)` to `residual` [N, D], contiguous, which is overwritten and
    returned. The norm is not rounded before the sum."""
    _launch(rows, weight, eps, residual, add=True)
    return residual


def _launch(
    rows: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, *, add: bool
) -> None:
    count, size = rows.shape
    block = triton.next_power_of_2(size)
    _rms_norm[(count,)](
        rows,
        weight,
        out,
        rows.stride(0),
        eps,
        ADD=add,
        SIZE=size,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
        **pdl(rows),
    )


@triton.jit
def _rms_norm(
    rows, weight, out, stride, eps, ADD: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
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
