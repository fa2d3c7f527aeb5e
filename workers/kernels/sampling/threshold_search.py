"""Finds the thresholds of top-k and top-p in a row's logits without sorting them: the greatest key
such that a given count of tokens, or a given mass of probability, is not below it."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl

from workers.kernels.sampling.logit_rows import load_logits, order_key, value_of_key

TOKENS = tl.constexpr(0)
MASSES = tl.constexpr(1)
TIES = tl.constexpr(2)

ONE = tl.constexpr(float(1 << 40))
"""The mass of a row's highest logit: 2^18 of them are less than 2^63."""

_PIVOTS = tl.constexpr(8)
"""Parts that an interval is cut into in one pass: 11 passes search 32 bits."""


@triton.jit
def mass(values, highest, scale):
    """int64: exp((value - highest) * scale), where 2^40 is 1."""
    return (tl.exp((values - highest) * scale) * ONE).to(tl.int64)


@triton.jit
def total_mass(shares):
    """int64: the mass of float32 shares [N] together.

    The same in all threads; a sum of floats need not be, because some threads may fuse the product
    that made a share with the addition.
    """
    return tl.sum((shares * ONE).to(tl.int64), axis=0)


@triton.jit
def mass_of_key(source, key, SHIFT: tl.constexpr):
    """The mass of one token whose logit has this key."""
    return mass(value_of_key(key, SHIFT), source[8], source[9])


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
def weigh_one(source, pivot, BY: tl.constexpr, LAYOUT: tl.constexpr):
    """The same for one pivot."""
    return tl.max(weigh(source, tl.zeros([1], tl.int64) + pivot, 0, BY, LAYOUT), axis=0)


@triton.jit
def search(source, low, high, target, tie, BY: tl.constexpr, LAYOUT: tl.constexpr):
    """The greatest key of [low, high) such that at least `target` (int64) is not below it, or `low`
    if there is less; and how much is above that key. All threads must agree on the arguments."""
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
