"""Softmax attention one tile of keys at a time, shared by the attention kernels."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def fold_tile(queries, keys, values, visible, scale, peak, total, attended, MASKED: tl.constexpr):
    """Fold a tile into a running softmax (Milakov and Gimelshein 2018, arXiv:1805.02867).

    queries [M, D], keys and values [N, D]; `visible` [M, N] or [1, N] is read only if MASKED;
    `scale` is for base 2. So far, peak [M] is the greatest score, total [M] the sum of
    2 ** (score - peak), and attended [M, D] the sum of values with these weights: all float32.
    """
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, axis=1))
    weights = tl.exp2(scores - higher[:, None])
    kept = tl.exp2(peak - higher)
    total = total * kept + tl.sum(weights, axis=1)
    attended = attended * kept[:, None]
    attended = tl.dot(weights.to(values.dtype), values, attended, input_precision="ieee")
    return higher, total, attended
