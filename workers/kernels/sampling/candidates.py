"""The few tokens of a row that top-k, top-p and min-p may keep, found without a sort.

The groups' statistics give a pivot for each row: no filter keeps a token whose logit is below it.
Tokens at or above it, the candidates, are gathered in any order: nearly always a few hundred out of
a hundred thousand. A row with more than CAPACITY candidates is drawn from as a whole.
"""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from workers.kernels.sampling.group_statistics import GROUP, GROUPS_IN_TILE, GroupStatistics
from workers.kernels.sampling.logit_rows import (
    LogitRows,
    load_logits,
    order_key,
    value_of_key,
)
from workers.kernels.sampling.threshold_search import total_mass

CAPACITY = 4096

UNALIGNED = [
    *("adjusted_index", "sums"),
    *("inverse_temperature", "uniforms", "top_ps", "min_ps", "top_ks"),
]
"""Arguments that are parts of one allocation: their alignment depends on the number of rows, and
must not lead to another compilation, which would hold up all requests."""

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite float32: a logit of -inf is never drawn."""

_SLACK = tl.constexpr(0.999)
"""Part of what top-p drops that is used for the pivot: a margin for sums that round differently."""


class DrawParameters(NamedTuple):
    """How each of S rows is drawn, [S] each on the device; `TokenSampling` says what they mean.

    inverse_temperature  float32, finite; a greedy row has 1, and a top_k of 1
    uniform              float32 in [0, 1), the row's random number
    top_p, min_p         float32
    top_k                int32
    """

    inverse_temperature: torch.Tensor
    uniform: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor


class Candidates(NamedTuple):
    """The tokens of S rows that their filters may keep.

    pivots       float32[S], a bound below which no filter keeps a logit; +inf for a row without
                 filters and for one that is not finite
    found        int32[S], how many of the row's logits are not below it
    values, ids  float32 and int32[S, CAPACITY], the first CAPACITY of them found, in any order
    """

    pivots: torch.Tensor
    found: torch.Tensor
    values: torch.Tensor
    ids: torch.Tensor


def gather_candidates(
    rows: LogitRows,
    parameters: DrawParameters,
    statistics: GroupStatistics,
    capacity: int = CAPACITY,
) -> Candidates:
    """Two launches: the pivots, then the tokens that are not below them."""
    count, vocabulary = rows.logits.shape
    groups = statistics.peaks.shape[1]
    device = rows.logits.device
    candidates = Candidates(
        pivots=torch.empty(count, dtype=torch.float32, device=device),
        found=torch.empty(count, dtype=torch.int32, device=device),
        values=torch.empty((count, capacity), dtype=torch.float32, device=device),
        ids=torch.empty((count, capacity), dtype=torch.int32, device=device),
    )
    _find_pivots[(count,)](
        *statistics,
        parameters.inverse_temperature,
        parameters.top_p,
        parameters.min_p,
        parameters.top_k,
        candidates.pivots,
        candidates.found,
        GROUPS=groups,
        BLOCK=triton.next_power_of_2(groups),
        GROUP=GROUP,
        num_warps=8,
    )
    _gather[(count, triton.cdiv(groups, GROUPS_IN_TILE))](
        rows.logits,
        rows.adjusted,
        rows.adjusted_index,
        statistics.peaks,
        *candidates,
        VOCABULARY=vocabulary,
        GROUPS=groups,
        GROUPS_IN_TILE=GROUPS_IN_TILE,
        GROUP=GROUP,
        CAPACITY=capacity,
        ADJUSTED=rows.adjusted is not None,
        num_warps=4,
    )
    return candidates


@triton.jit
def load_shares(peaks, sums, row, scale, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """A row's highest logit, its groups' peaks [BLOCK], and their shares: sums of
    exp((logit - highest) * scale)."""
    groups = tl.arange(0, BLOCK)
    here = row * GROUPS + groups
    peak = tl.load(peaks + here, mask=groups < GROUPS, other=float("-inf"))
    sums_here = tl.load(sums + here, mask=groups < GROUPS, other=0.0)
    highest = tl.max(peak, axis=0)
    return highest, peak, sums_here * tl.exp((peak - highest) * scale)


@triton.jit
def min_p_logit(highest, scale, min_p):
    """The logit whose probability is `min_p` times the highest one."""
    return highest + tl.log(min_p) / scale


@triton.jit
def _top_k_pivot(peak, top_k):
    """The k-th highest of the groups' peaks: at least k tokens are not below it."""
    keys = order_key(peak)
    low = order_key(LOWEST + 0.0).to(tl.int64)
    high = order_key(tl.max(peak, axis=0)).to(tl.int64) + 1
    while high - low > 1:
        middle = (low + high) // 2
        reached = tl.sum((keys >= middle.to(tl.int32)).to(tl.int32), axis=0) >= top_k
        low = tl.where(reached, middle, low)
        high = tl.where(reached, high, middle)
    return value_of_key(low.to(tl.int32), 0)


@triton.jit
def _top_p_pivot(peak, shares, highest, scale, top_p, GROUP: tl.constexpr):
    """A logit such that all tokens below it have less than 1 - top_p of the probability together.

    A group whose peak is below the pivot has all its tokens below it. Any other group has at most
    the mass of its tokens but the peak below it, and at most their number times the pivot's mass.
    """
    spare = (total_mass(shares).to(tl.float64) * ((1.0 - top_p) * _SLACK)).to(tl.int64)
    others = tl.maximum(shares - tl.exp((peak - highest) * scale), 0.0)
    low = order_key(LOWEST + 0.0).to(tl.int64)
    high = order_key(highest).to(tl.int64) + 1
    while high - low > 1:
        middle = (low + high) // 2
        pivot = value_of_key(middle.to(tl.int32), 0)
        most = tl.minimum(others, (GROUP - 1) * tl.exp((pivot - highest) * scale))
        left_out = total_mass(tl.where(peak < pivot, shares, most))
        low = tl.where(left_out <= spare, middle, low)
        high = tl.where(left_out <= spare, high, middle)
    return value_of_key(low.to(tl.int32), 0)


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def _find_pivots(
    peaks, sums, inverse_temperature, top_ps, min_ps, top_ks, pivots, found,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    scale = tl.load(inverse_temperature + row)
    top_k = tl.load(top_ks + row)
    top_p = tl.load(top_ps + row)
    min_p = tl.load(min_ps + row)
    highest, peak, shares = load_shares(peaks, sums, row, scale, GROUPS, BLOCK)
    total = tl.sum(shares, axis=0)
    pivot = highest * 0.0 + float("inf")
    truncated = (top_k > 0) | (top_p < 1.0) | (min_p > 0.0)
    # Not so for NaN.
    if truncated & (total < float("inf")):
        pivot = highest * 0.0 + LOWEST
        if top_k > 0:
            pivot = tl.maximum(pivot, _top_k_pivot(peak, top_k))
        elif top_p < 1.0:
            pivot = tl.maximum(pivot, _top_p_pivot(peak, shares, highest, scale, top_p, GROUP))
        # With both, top-p is a share of all that top-k keeps: none of it may be missing.
        if (min_p > 0.0) & ((top_k == 0) | (top_p >= 1.0)):
            pivot = tl.maximum(pivot, min_p_logit(highest, scale, min_p))
    tl.store(pivots + row, pivot)
    tl.store(found + row, 0)


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def _gather(
    logits, adjusted, adjusted_index, peaks, pivots, found, found_values, found_ids,
    VOCABULARY: tl.constexpr, GROUPS: tl.constexpr, GROUPS_IN_TILE: tl.constexpr,
    GROUP: tl.constexpr, CAPACITY: tl.constexpr, ADJUSTED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    pivot = tl.load(pivots + row)
    groups = tl.program_id(1) * GROUPS_IN_TILE + tl.arange(0, GROUPS_IN_TILE)
    peak = tl.load(peaks + row * GROUPS + groups, mask=groups < GROUPS, other=float("-inf"))
    if tl.max(peak, axis=0) >= pivot:
        ids = tl.program_id(1) * GROUPS_IN_TILE * GROUP + tl.arange(0, GROUPS_IN_TILE * GROUP)
        values = load_logits(
            logits, adjusted, adjusted_index, row, ids, ids < VOCABULARY, VOCABULARY, ADJUSTED
        )
        kept = values >= pivot
        number = tl.cumsum(kept.to(tl.int32), axis=0)
        first = tl.atomic_add(found + row, tl.max(number, axis=0))
        here = first + number - 1
        fits = kept & (here < CAPACITY)
        here += row * CAPACITY
        tl.store(found_values + here, values, mask=fits)
        tl.store(found_ids + here, ids, mask=fits)
