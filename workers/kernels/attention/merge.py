"""Attention over parts of a context, merged by log-sum-exp."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.kernels.launch import pdl

MAX_PARTS = 64


def merge(
    outputs: torch.Tensor, log_sum_exps: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Softmax attention over the union of P <= MAX_PARTS disjoint parts of a context.

    outputs [P, R, H, D] and log_sum_exps float32[P, R, H] (natural logarithm), both contiguous, are
    what each part alone gives (Dao 2023, arXiv:2307.08691, section 3). -> [R, H, D], in `out` where
    given. A part without tokens has a log-sum-exp of -inf, and its output is never read; where that
    goes for all parts nothing is written.
    """
    parts, rows, heads, head_dim = outputs.shape
    assert parts <= MAX_PARTS
    if out is None:
        out = torch.empty((rows, heads, head_dim), dtype=outputs.dtype, device=outputs.device)
    dim_block = triton.next_power_of_2(head_dim)
    _merge[(rows, heads)](
        outputs,
        log_sum_exps,
        out,
        parts,
        rows * heads,
        HEADS=heads,
        HEAD_DIM=head_dim,
        PARTS=MAX_PARTS,
        DIM_BLOCK=dim_block,
        num_warps=max(dim_block // 32, 1),
        **pdl(out),
    )
    return out


@triton.jit(do_not_specialize=["parts", "part_stride"])
def _merge(
    outputs, log_sum_exps, out, parts, part_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PARTS: tl.constexpr, DIM_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    here = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    which = tl.arange(0, PARTS)
    places = which.to(tl.int64) * part_stride + here
    sums = tl.load(log_sum_exps + places, mask=which < parts, other=float("-inf"))
    present = sums > float("-inf")
    peak = tl.max(sums, axis=0)
    weights = tl.where(present, tl.exp(sums - peak), 0.0)
    total = tl.sum(weights, axis=0)
    dims = tl.arange(0, DIM_BLOCK)
    inside = dims < tl.where(total > 0.0, HEAD_DIM, 0)
    partial = tl.load(
        outputs + places[:, None] * HEAD_DIM + dims[None, :],
        mask=present[:, None] & inside[None, :],
        other=0.0,
    ).to(tl.float32)
    merged = tl.sum(partial * weights[:, None], axis=0) / total
    tl.store(out + here * HEAD_DIM + dims, merged.to(out.dtype.element_ty), mask=inside)
