"""Attention over a shared prefix, computed once a group, as rows take it up: the part that is to be
folded into each row's attention over its own tokens."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


class PrefixParts(NamedTuple):
    """What R rows of T tokens know of their prefixes, each divided into at most P parts.

    outputs       [P, T, H, D], log_sum_exps float32[P, T, H] (natural logarithm), contiguous; not
                  written for a token's unused parts
    starts        int32[R]  tokens of the row's prefix, whole blocks; 0 without a prefix
    counts        int32[R]  parts of the row's prefix; 0 without a prefix
    """

    outputs: torch.Tensor
    log_sum_exps: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor

    @property
    def stride(self) -> int:
        """T * H: from a part to the next, in heads."""
        return self.log_sum_exps.stride(0)


@triton.jit
def fold_parts(
    outputs, log_sum_exps, count, stride, offsets, dims, present, peak, total, attended,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Fold `count` parts of a prefix into a running softmax (see `fold_tile`).

    `offsets` int64[M] are the queries' indices among the T * H = `stride` of a part; they
    are read where `present`.
    """
    for part in range(count):
        here = part * stride + offsets
        seen = tl.load(log_sum_exps + here, mask=present, other=float("-inf")) * _LOG2_E
        inside = (seen > float("-inf"))[:, None] & (dims < HEAD_DIM)[None, :]
        partial = tl.load(
            outputs + here[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0
        )
        higher = tl.maximum(peak, seen)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight, kept = tl.exp2(seen - base), tl.exp2(peak - base)
        total = total * kept + weight
        attended = attended * kept[:, None] + partial.to(tl.float32) * weight[:, None]
        peak = higher
    return peak, total, attended
