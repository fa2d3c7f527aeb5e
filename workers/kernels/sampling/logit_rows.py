"""Rows of logits as the sampling kernels read them, and integer keys in the order of logits."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl


class LogitRows(NamedTuple):
    """A step's logits [S, V], of which A rows may have been adjusted.

    adjusted        float32[A, V], read in place of these rows; None if A is 0
    adjusted_index  int32[S], each row's index in `adjusted`, -1 for none; None if A is 0
    """

    logits: torch.Tensor
    adjusted: torch.Tensor | None = None
    adjusted_index: torch.Tensor | None = None


def key_shift(rows: LogitRows) -> int:
    """How many low bits of an `order_key` are always 0: bfloat16 and float16 have fewer digits."""
    if rows.adjusted is not None:
        return 0
    return {torch.bfloat16: 16, torch.float16: 13}.get(rows.logits.dtype, 0)


@triton.jit
def load_logits(
    logits,
    adjusted,
    adjusted_index,
    row,
    ids,
    inside,
    VOCABULARY: tl.constexpr,
    ADJUSTED: tl.constexpr,
):
    """float32 logits of `ids` in one row, -inf where not `inside`."""
    if ADJUSTED:
        index = tl.load(adjusted_index + row).to(tl.int64)
        if index >= 0:
            values = tl.load(
                adjusted + index * VOCABULARY + ids, mask=inside, other=float("-inf")
            ).to(tl.float32)
        else:
            values = tl.load(
                logits + row.to(tl.int64) * VOCABULARY + ids, mask=inside, other=float("-inf")
            ).to(tl.float32)
    else:
        values = tl.load(
            logits + row.to(tl.int64) * VOCABULARY + ids, mask=inside, other=float("-inf")
        ).to(tl.float32)
    return values


@triton.jit
def order_key(values):
    """int32 keys in the order of float32 values that are not NaN; the two zeros have one key."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of_key(key, SHIFT: tl.constexpr):
    """The float32 value whose `order_key`, shifted right by SHIFT, is `key`."""
    bits = (key << SHIFT).to(tl.int32)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ((bits >> SHIFT) << SHIFT).to(tl.float32, bitcast=True)


@triton.jit
def first_key(value, SHIFT: tl.constexpr):
    """The lowest `order_key`, shifted right by SHIFT, of logits that are at least `value`."""
    key = order_key(value) >> SHIFT
    return key + (value_of_key(key, SHIFT) < value).to(tl.int32)
