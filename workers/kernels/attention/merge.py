"""Merges attention over the splits of a context by log-sum-exp."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.kernels.launch import pdl

MAX_SPLITS = 64


def merge(
    outputs: torch.Tensor, log_sum_exps: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Softmax attention over the union of S <= MAX_SPLITS disjoint splits of a context.

    outputs [S, R, H, D] and log_sum_exps float32[S, R, H] (natural logarithm), both contiguous, are
    each split's own attention (Dao 2023, arXiv:2307.08691, section 3). Returns [R, H, D], `out` if
    given. A split without tokens has a log-sum-exp of -inf, and its output is never read; a row
    without tokens in any split is not written.
    """
    splits, rows, heads, head_dim = outputs.shape
    assert splits <= MAX_SPLITS
    if out is None:
        out = torch.empty((rows, heads, head_dim), dtype=outputs.dtype, device=outputs.device)
    dim_block = triton.next_power_of_2(head_dim)
    _merge[(rows, heads)](
        outputs,
        log_sum_exps,
        out,
        splits,
        rows * heads,
        HEADS=heads,
        HEAD_DIM=head_dim,
        SPLITS=MAX_SPLITS,
        DIM_BLOCK=dim_block,
        num_warps=max(dim_block // 32, 1),
        **pdl(out),
    )
    return out


@triton.jit(do_not_specialize=["splits", "split_stride"])
def _merge(
    outputs, log_sum_exps, out, splits, split_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, DIM_BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    here = tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)
    which = tl.arange(0, SPLITS)
    indices = which.to(tl.int64) * split_stride + here
    sums = tl.load(log_sum_exps + indices, mask=which < splits, other=float("-inf"))
    present = sums > float("-inf")
    peak = tl.max(sums, axis=0)
    weights = tl.where(present, tl.exp(sums - peak), 0.0)
    total = tl.sum(weights, axis=0)
    dims = tl.arange(0, DIM_BLOCK)
    inside = dims < tl.where(total > 0.0, HEAD_DIM, 0)
    partial = tl.load(
        outputs + indices[:, None] * HEAD_DIM + dims[None, :],
        mask=present[:, None] & inside[None, :],
        other=0.0,
    ).to(tl.float32)
    merged = tl.sum(partial * weights[:, None], axis=0) / total
    tl.store(out + here * HEAD_DIM + dims, merged.to(out.dtype.element_ty), mask=inside)
