"""One token a row by one uniform number, without a sort.

The token is where the uniform number falls in the row's cumulative distribution. A row without
filters takes its tokens in the order of ids: the number picks a group by the groups' shares, then a
token in it. A row with filters takes them in descending order of probability, equal ones by id, as
if it were sorted; searches find what a sort would show.

Masses are integers (probability relative to the highest, times 2^40), so that sums do not depend on
the order of additions: equal seeds and logits always draw equal tokens, and all threads of a
program agree. Threads with different sums would leave a search in different iterations, and the
program would hang.
"""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl

from workers.kernels.sampling.candidates import (
    CAPACITY,
    UNALIGNED,
    DrawParameters,
    gather_candidates,
    load_shares,
    min_p_logit,
)
from workers.kernels.sampling.group_statistics import GROUP, group_statistics
from workers.kernels.sampling.logit_rows import (
    LogitRows,
    first_key,
    key_shift,
    load_logits,
    order_key,
)
from workers.kernels.sampling.threshold_search import (
    MASSES,
    TIES,
    TOKENS,
    mass_of_key,
    search,
    total_mass,
    weigh_one,
)

CHUNK = 1024
"""Elements that one program weighs at a time."""


def draw_tokens(
    rows: LogitRows, parameters: DrawParameters, *, truncated: bool, capacity: int = CAPACITY
) -> torch.Tensor:
    """A token for each row, int32[S]; -1 where a row holds NaN or +inf or nothing but -inf.

    truncated  whether any row has a filter; two launches without, four with
    capacity   candidates kept for a row
    """
    count, vocabulary = rows.logits.shape
    statistics = group_statistics(rows, parameters.inverse_temperature)
    candidates = (
        gather_candidates(rows, parameters, statistics, capacity) if truncated else (None,) * 4
    )
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
        LAYOUT=(vocabulary, capacity, CHUNK, key_shift(rows), rows.adjusted is not None),
        TRUNCATED=truncated,
        num_warps=8,
    )
    return tokens


@triton.jit
def _invert(weights, target):
    """The index at which the running sum of `weights` [N] passes `target`, and the sum before it.

    Never the index of a weight of 0, however sums round.
    """
    indices = tl.arange(0, weights.shape[0])
    cumulative = tl.cumsum(weights, axis=0)
    passed = cumulative <= target
    last = tl.max(tl.where(weights > 0.0, indices, 0), axis=0)
    found = tl.minimum(tl.sum(passed.to(tl.int32), axis=0), last)
    return found, tl.max(tl.where(passed, cumulative, 0.0), axis=0)


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
def _kept_mass(source, low, high, total, top_p, min_p, top_k, LAYOUT: tl.constexpr):
    """The mass of the tokens that top-k, top-p and min-p keep.

    Each filter keeps a beginning of the descending order; together they keep the shortest. `total`
    is the mass of the whole row, `low` the lowest key among the candidates.
    """
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
