"""One token a row by one uniform number, without a sort.

The token is where the uniform number falls in the row's cumulative distribution. Without filters
tokens are in the order of ids: the number picks a group by the groups' shares, then a token in it.
With filters they are in descending order of probability, equal ones by id, which searches find.

Masses are integers, probability relative to the highest times 2^40, whose sums do not depend on the
order of additions: equal seeds and logits always draw equal tokens. Threads of a program with
different sums would leave a search in different iterations, and hang.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from workers.kernels.sampling.logit_rows import (
    GROUP,
    GROUPS_IN_TILE,
    GroupStatistics,
    LogitRows,
    first_key,
    group_statistics,
    key_shift,
    load_logits,
    order_key,
    value_of_key,
)

CAPACITY = 4096
"""Candidates kept for a row."""

CHUNK = 1024
"""Elements that one program weighs at a time."""

UNALIGNED = [
    *("adjusted_index", "sums"),
    *("inverse_temperature", "uniforms", "top_ps", "min_ps", "top_ks"),
]
"""Parts of one allocation, whose alignment the number of rows decides: it must not lead to another
compilation, which would hold up all requests."""

LOWEST = tl.constexpr(-3.4028234663852886e38)
"""The lowest finite float32: a logit of -inf is never drawn."""

_SLACK = tl.constexpr(0.999)
"""Part of what top-p drops that is used for the pivot: a margin for sums that round differently."""

TOKENS = tl.constexpr(0)
MASSES = tl.constexpr(1)
TIES = tl.constexpr(2)

ONE = tl.constexpr(float(1 << 40))
"""The mass of a row's highest logit: 2^18 of them are less than 2^63."""

_PIVOTS = tl.constexpr(8)
"""Parts that an interval is cut into in one pass: 11 passes search 32 bits."""


class DrawParameters(NamedTuple):
    """How each of S rows is drawn, [S] each on the device. `TokenSampling` says what they mean.

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

    pivots       float32[S], below which no filter keeps a logit. +inf without filters, and for a
                 row that is not finite.
    found        int32[S], how many of the row's logits are not below it
    values, ids  float32 and int32[S, CAPACITY], the first CAPACITY of them found, in any order
    """

    pivots: torch.Tensor
    found: torch.Tensor
    values: torch.Tensor
    ids: torch.Tensor


def draw_tokens(rows: LogitRows, parameters: DrawParameters, *, truncated: bool) -> torch.Tensor:
    """A token for each row, int32[S]. -1 where a row holds NaN or +inf or nothing but -inf.

    truncated  whether any row has a filter; two launches without, four with
    """
    count, vocabulary = rows.logits.shape
    statistics = group_statistics(rows, parameters.inverse_temperature)
    candidates = gather_candidates(rows, parameters, statistics) if truncated else (None,) * 4
    tokens = torch.empty(count, dtype=torch.int32, device=rows.logits.device)
    groups = statistics.peaks.shape[1]
    _draw[(count,)](
        *rows,
        *parameters,
        *statistics,
        *candidates,
        tokens,
        GROUPS=groups,
        BLOCK=triton.next_power_of_2(groups),
        GROUP=GROUP,
        LAYOUT=(vocabulary, CAPACITY, CHUNK, key_shift(rows), rows.adjusted is not None),
        TRUNCATED=truncated,
        num_warps=8,
    )
    return tokens


def gather_candidates(
    rows: LogitRows, parameters: DrawParameters, statistics: GroupStatistics
) -> Candidates:
    """Two launches: the pivots, then the tokens that are not below them."""
    count, vocabulary = rows.logits.shape
    groups = statistics.peaks.shape[1]
    device = rows.logits.device
    candidates = Candidates(
        pivots=torch.empty(count, dtype=torch.float32, device=device),
        found=torch.empty(count, dtype=torch.int32, device=device),
        values=torch.empty((count, CAPACITY), dtype=torch.float32, device=device),
        ids=torch.empty((count, CAPACITY), dtype=torch.int32, device=device),
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
        *rows,
        statistics.peaks,
        *candidates,
        VOCABULARY=vocabulary,
        GROUPS=groups,
        GROUPS_IN_TILE=GROUPS_IN_TILE,
        GROUP=GROUP,
        CAPACITY=CAPACITY,
        ADJUSTED=rows.adjusted is not None,
        num_warps=4,
    )
    return candidates


@triton.jit(do_not_specialize_on_alignment=UNALIGNED)
def _draw(
    logits, adjusted, adjusted_index, inverse_temperature, uniforms, top_ps, min_ps, top_ks,
    peaks, sums, pivots, found, found_values, found_ids, tokens,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr, LAYOUT: tl.constexpr,
    TRUNCATED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    scale = tl.load(inverse_temperature + row)
    uniform = tl.load(uniforms + row)
    highest, _, shares = load_shares(peaks, sums, row, scale, GROUPS, BLOCK)
    token = row * 0 - 1
    if tl.sum(shares, axis=0) < float("inf"):  # not so for NaN
        pivot = highest * 0.0 + float("inf")
        if TRUNCATED:
            pivot = tl.load(pivots + row)
        if pivot == float("inf"):
            token = _draw_in_order(
                logits, adjusted, adjusted_index, row, shares, highest, scale, uniform,
                LAYOUT[0], GROUP, LAYOUT[4],
            )  # fmt: skip
        elif TRUNCATED:
            number = tl.load(found + row)
            whole = number > LAYOUT[1]
            count = tl.where(whole, LAYOUT[0], number)
            source = (
                logits, adjusted, adjusted_index, found_values, found_ids, row, whole, count,
                highest, scale,
            )  # fmt: skip
            token = _draw_truncated(
                source, pivot, shares, uniform, tl.load(top_ps + row), tl.load(min_ps + row),
                tl.load(top_ks + row), LAYOUT,
            )  # fmt: skip
    tl.store(tokens + row, token)


@triton.jit
def _draw_in_order(
    logits, adjusted, adjusted_index, row, shares, highest, scale, uniform,
    VOCABULARY: tl.constexpr, GROUP: tl.constexpr, ADJUSTED: tl.constexpr,
):  # fmt: skip
    """The token where `uniform` falls in the row's distribution, in the order of ids."""
    target = uniform * tl.max(tl.cumsum(shares, axis=0), axis=0)
    group, before = _invert(shares, target)
    ids = group * GROUP + tl.arange(0, GROUP)
    values = load_logits(
        logits, adjusted, adjusted_index, row, ids, ids < VOCABULARY, VOCABULARY, ADJUSTED
    )
    member, _ = _invert(tl.exp((values - highest) * scale), target - before)
    return group * GROUP + member


@triton.jit
def _invert(weights, target):
    """The index at which the running sum of `weights` [N] passes `target`, and the sum before it.
    Never the index of a weight of 0, however sums round."""
    indices = tl.arange(0, weights.shape[0])
    cumulative = tl.cumsum(weights, axis=0)
    passed = cumulative <= target
    last = tl.max(tl.where(weights > 0.0, indices, 0), axis=0)
    found = tl.minimum(tl.sum(passed.to(tl.int32), axis=0), last)
    return found, tl.max(tl.where(passed, cumulative, 0.0), axis=0)


@triton.jit
def _draw_truncated(source, pivot, shares, uniform, top_p, min_p, top_k, LAYOUT: tl.constexpr):
    """The token where `uniform` falls in the distribution kept, in descending order."""
    VOCABULARY: tl.constexpr = LAYOUT[0]
    SHIFT: tl.constexpr = LAYOUT[3]
    low = first_key(pivot, SHIFT).to(tl.int64)
    high = (order_key(source[8]) >> SHIFT).to(tl.int64) + 1
    kept = _kept_mass(source, low, high, total_mass(shares), top_p, min_p, top_k, LAYOUT)
    target = (kept.to(tl.float64) * uniform).to(tl.int64)
    key, above = search(source, low, high, target + 1, 0, MASSES, LAYOUT)
    rank = (target - above) // tl.maximum(mass_of_key(source, key, SHIFT), 1)
    nowhere = low * 0 - VOCABULARY
    negated, _ = search(source, nowhere, nowhere * 0 + 1, rank + 1, key, TIES, LAYOUT)
    return (-negated).to(tl.int32)


@triton.jit
def _kept_mass(source, low, high, total, top_p, min_p, top_k, LAYOUT: tl.constexpr):
    """The mass of the tokens that top-k, top-p and min-p keep, each a beginning of the descending
    order. `total` is the mass of the whole row, `low` the lowest key among the candidates."""
    SHIFT: tl.constexpr = LAYOUT[3]
    kept = weigh_one(source, low, MASSES, LAYOUT)
    if top_k > 0:
        key, above = search(source, low, high, top_k.to(tl.int64), 0, TOKENS, LAYOUT)
        ties = (top_k - above) * mass_of_key(source, key, SHIFT)
        kept = tl.minimum(kept, weigh_one(source, key + 1, MASSES, LAYOUT) + ties)
        total = kept
    if top_p < 1.0:
        target = tl.maximum(tl.ceil(total.to(tl.float64) * top_p), 1.0).to(tl.int64)
        key, above = search(source, low, high, target, 0, MASSES, LAYOUT)
        tied = tl.maximum(mass_of_key(source, key, SHIFT), 1)
        kept = tl.minimum(kept, above + (target - above + tied - 1) // tied * tied)
    if min_p > 0.0:
        key = first_key(min_p_logit(source[8], source[9], min_p), SHIFT)
        kept = tl.minimum(kept, weigh_one(source, tl.maximum(key, low), MASSES, LAYOUT))
    return kept


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

    Below it are all of a group whose peak is, and of any other at most the mass of its tokens but
    the peak, and their number times the pivot's mass.
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
def search(source, low, high, target, tie, BY: tl.constexpr, LAYOUT: tl.constexpr):
    """The greatest key of [low, high) that at least `target` (int64) is not below, else `low`. The
    second result is how much is above that key. All threads must agree on the arguments."""
    cuts = tl.arange(0, _PIVOTS).to(tl.int64)
    above = target * 0
    while high - low > 1:
        pivots = low + 1 + (high - low - 1) * cuts // _PIVOTS
        weights = weigh(source, pivots, tie, BY, LAYOUT)
        reached = weights >= target
        low = tl.maximum(low, tl.max(tl.where(reached, pivots, low), axis=0))
        high = tl.minimum(high, tl.min(tl.where(reached, high, pivots), axis=0))
        above = tl.maximum(above, tl.max(tl.where(reached, 0, weights), axis=0))
    return low, above


@triton.jit
def weigh_one(source, pivot, BY: tl.constexpr, LAYOUT: tl.constexpr):
    """`weigh` for one pivot."""
    return tl.max(weigh(source, tl.zeros([1], tl.int64) + pivot, 0, BY, LAYOUT), axis=0)


@triton.jit
def weigh(source, pivots, tie, BY: tl.constexpr, LAYOUT: tl.constexpr):
    """How much of a row is not below each of `pivots` int64[P]: int64[P].

    TOKENS: tokens, compared by the keys of their logits
    MASSES: mass, compared by the keys of their logits
    TIES:   tokens with the key `tie`, compared by their negated ids
    """
    CHUNK: tl.constexpr = LAYOUT[2]
    SHIFT: tl.constexpr = LAYOUT[3]
    totals = tl.zeros_like(pivots)
    for start in range(0, source[7], CHUNK):
        values, ids = _elements(source, start, LAYOUT)
        keys = order_key(values) >> SHIFT
        if BY == TIES:
            keys = tl.where(keys == tie, -ids, -0x80000000)
        above = keys[None, :] >= pivots.to(tl.int32)[:, None]
        if BY == MASSES:
            weights = mass(values, source[8], source[9])
            totals += tl.sum(tl.where(above, weights[None, :], 0), axis=1)
        else:
            totals += tl.sum(above.to(tl.int32), axis=1).to(tl.int64)
    return totals


@triton.jit
def _elements(source, start, LAYOUT: tl.constexpr):
    """A chunk of the row's elements: float32 logits, -inf past the end, and int32 ids."""
    logits, adjusted, adjusted_index, found_values, found_ids, row, whole, count, _, _ = source
    VOCABULARY: tl.constexpr = LAYOUT[0]
    CAPACITY: tl.constexpr = LAYOUT[1]
    CHUNK: tl.constexpr = LAYOUT[2]
    ADJUSTED: tl.constexpr = LAYOUT[4]
    here = start + tl.arange(0, CHUNK)
    inside = here < count
    if whole:
        ids = here
        values = load_logits(
            logits, adjusted, adjusted_index, row, ids, inside, VOCABULARY, ADJUSTED
        )
    else:
        ids = tl.load(found_ids + row * CAPACITY + here, mask=inside, other=0)
        values = tl.load(found_values + row * CAPACITY + here, mask=inside, other=float("-inf")).to(
            tl.float32
        )
    return values, ids


@triton.jit
def mass(values, highest, scale):
    """int64: exp((value - highest) * scale), where 2^40 is 1."""
    return (tl.exp((values - highest) * scale) * ONE).to(tl.int64)


@triton.jit
def total_mass(shares):
    """int64: the mass of float32 shares [N] together, the same in all threads. In a sum of floats
    some might fuse the product that made a share with the addition."""
    return tl.sum((shares * ONE).to(tl.int64), axis=0)


@triton.jit
def mass_of_key(source, key, SHIFT: tl.constexpr):
    """The mass of one token whose logit has this key."""
    return mass(value_of_key(key, SHIFT), source[8], source[9])
