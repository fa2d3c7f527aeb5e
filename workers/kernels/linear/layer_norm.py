"""LayerNorm, of a sum too: one program a row."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.kernels.launch import pdl


def layer_norm(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """LayerNorm (Ba et al. 2016, arXiv:1607.06450) of rows, or residual + rows, [N, D] contiguous
    each: [N, D] in their dtype, a new tensor.

    Computed in float32, rounded once.
    """
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
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
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
