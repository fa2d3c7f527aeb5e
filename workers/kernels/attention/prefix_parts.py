"""Folds attention over a shared prefix, computed once for all rows, into a row's attention over its
own tokens."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


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
