"""Passes over rows of logits: the best token of each row, statistics of groups, integer keys."""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from workers.kernels.dependent_launch import pdl, wait_for_previous

GROUP = 128
"""Logits a group. Small, so that pivots, which are found from the peaks, are tight."""

GROUPS_IN_TILE = 16

TILE = 2048
"""Logits a program: a vocabulary of 128,256 keeps 63 programs busy for one row."""

_UNALIGNED = ["adjusted_index", "inverse_temperature", "sums"]
"""As `workers.kernels.sampling.draw_tokens.UNALIGNED`."""


class LogitRows(NamedTuple):
    """A step's logits [S, V], of which A rows may have been adjusted.

    adjusted        float32[A, V], read in place of these rows; None if A is 0
    adjusted_index  int32[S], each row's index in `adjusted`, -1 for none; None if A is 0
    """

    logits: torch.Tensor
    adjusted: torch.Tensor | None = None
    adjusted_index: torch.Tensor | None = None


class GroupStatistics(NamedTuple):
    """Each row's G = ceil(V / GROUP) groups of logits.

    peaks  float32[S, G], the highest logit
    sums   float32[S, G], sum of exp((logit - highest) / temperature); NaN where the group holds NaN
           or +inf
    """

    peaks: torch.Tensor
    sums: torch.Tensor


def best_tokens(rows: LogitRows) -> torch.Tensor:
    """The lowest id among each row's highest logits, int32[S]. -1 where a row holds NaN, +inf or
    only -inf."""
    count, vocabulary = rows.logits.shape
    tiles = -(-vocabulary // TILE)
    device = rows.logits.device
    partial = torch.empty((count, tiles), dtype=torch.int64, device=device)
    tokens = torch.empty(count, dtype=torch.int32, device=device)
    _best_of_tiles[(count, tiles)](
        *rows,
        partial,
        VOCABULARY=vocabulary,
        TILE=TILE,
        ADJUSTED=rows.adjusted is not None,
        num_warps=4,
        **pdl(rows.logits),
    )
    _best_of_rows[(count,)](
        partial,
        tokens,
        TILES=tiles,
        BLOCK=triton.next_power_of_2(tiles),
        num_warps=1,
        **pdl(rows.logits),
    )
    return tokens


@triton.jit
def _best_of_tiles(
    logits, adjusted, adjusted_index, partial,
    VOCABULARY: tl.constexpr, TILE: tl.constexpr, ADJUSTED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each tile's best as one integer, the logit's key above the id, which is counted down."""
    wait_for_previous(PDL)
    row = tl.program_id(0)
    tile = tl.program_id(1)
    ids = tile * TILE + tl.arange(0, TILE)
    values = load_logits(
        logits, adjusted, adjusted_index, row, ids, ids < VOCABULARY, VOCABULARY, ADJUSTED
    )
    is_nan = values != values  # noqa: PLR0124
    keys = tl.where(is_nan, 0x7FFFFFFF, order_key(values))
    ranked = (keys.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
    tl.store(partial + row * tl.num_programs(1) + tile, tl.max(ranked, axis=0))


@triton.jit
def _best_of_rows(partial, tokens, TILES: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    wait_for_previous(PDL)
    row = tl.program_id(0)
    tiles = tl.arange(0, BLOCK)
    # Lanes past the last tile read the first one again.
    ranked = tl.load(partial + row * TILES + tl.where(tiles < TILES, tiles, 0))
    best = tl.max(ranked, axis=0)
    key = (best >> 32).to(tl.int32)
    token = 0x7FFFFFFF - (best & 0x7FFFFFFF).to(tl.int32)
    infinity = 0x7F800000
    # The key of -inf is that of +inf with every bit inverted but the sign's: -infinity - 1.
    finite = (key < infinity) & (key > -infinity - 1)
    tl.store(tokens + row, tl.where(finite, token, -1))


def group_statistics(
    rows: LogitRows, inverse_temperature: torch.Tensor | None = None
) -> GroupStatistics:
    """`inverse_temperature` float32[S]. None is a temperature of 1."""
    count, vocabulary = rows.logits.shape
    groups = -(-vocabulary // GROUP)
    device = rows.logits.device
    peaks, sums = torch.empty((2, count, groups), dtype=torch.float32, device=device)
    _group_statistics[(count, triton.cdiv(groups, GROUPS_IN_TILE))](
        *rows,
        inverse_temperature,
        peaks,
        sums,
        VOCABULARY=vocabulary,
        GROUPS=groups,
        GROUPS_IN_TILE=GROUPS_IN_TILE,
        GROUP=GROUP,
        ADJUSTED=rows.adjusted is not None,
        SCALED=inverse_temperature is not None,
        num_warps=4,
    )
    return GroupStatistics(peaks, sums)


@triton.jit(do_not_specialize_on_alignment=_UNALIGNED)
def _group_statistics(
    logits, adjusted, adjusted_index, inverse_temperature, peaks, sums,
    VOCABULARY: tl.constexpr, GROUPS: tl.constexpr, GROUPS_IN_TILE: tl.constexpr,
    GROUP: tl.constexpr, ADJUSTED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    groups = tl.program_id(1) * GROUPS_IN_TILE + tl.arange(0, GROUPS_IN_TILE)
    ids = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    values = load_logits(
        logits, adjusted, adjusted_index, row, ids, ids < VOCABULARY, VOCABULARY, ADJUSTED
    )
    peak = tl.max(values, axis=1)
    anchor = tl.where(peak == float("-inf"), 0.0, peak)  # a group of -inf sums to 0, not to NaN
    below = values - anchor[:, None]
    if SCALED:
        below *= tl.load(inverse_temperature + row)
    total = tl.sum(tl.exp(below), axis=1)
    here = row * GROUPS + groups
    tl.store(peaks + here, peak, mask=groups < GROUPS)
    tl.store(sums + here, total, mask=groups < GROUPS)


@triton.jit
def load_logits(
    logits, adjusted, adjusted_index, row, ids, inside,
    VOCABULARY: tl.constexpr, ADJUSTED: tl.constexpr,
):  # fmt: skip
    """float32 logits of `ids` in one row, -inf where not `inside`."""
    if ADJUSTED:
        index = tl.load(adjusted_index + row)
        if index >= 0:
            values = _load_row(adjusted, index, ids, inside, VOCABULARY)
        else:
            values = _load_row(logits, row, ids, inside, VOCABULARY)
    else:
        values = _load_row(logits, row, ids, inside, VOCABULARY)
    return values


@triton.jit
def _load_row(rows, row, ids, inside, VOCABULARY: tl.constexpr):
    here = rows + row.to(tl.int64) * VOCABULARY + ids
    return tl.load(here, mask=inside, other=float("-inf")).to(tl.float32)


def key_shift(rows: LogitRows) -> int:
    """How many low bits of an `order_key` are always 0: bfloat16 and float16 have fewer digits."""
    if rows.adjusted is not None:
        return 0
    return {torch.bfloat16: 16, torch.float16: 13}.get(rows.logits.dtype, 0)


@triton.jit
def order_key(values):
    """int32 keys in the order of float32 values that are not NaN. The two zeros have one key."""
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
