"""Greedy sampling: the best token of each row, over all multiprocessors."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.kernels.launch import pdl
from workers.kernels.sampling.logit_rows import LogitRows, load_logits, order_key

TILE = 2048
"""Logits a program: a vocabulary of 128,256 keeps 63 programs busy for one row."""


def best_tokens(rows: LogitRows) -> torch.Tensor:
    """The lowest id among each row's highest logits, int32[S]; -1 where a row holds NaN or +inf or
    nothing but -inf."""
    count, vocabulary = rows.logits.shape
    tiles = -(-vocabulary // TILE)
    device = rows.logits.device
    partial = torch.empty((count, tiles), dtype=torch.int64, device=device)
    tokens = torch.empty(count, dtype=torch.int32, device=device)
    _best_of_tiles[(count, tiles)](
        rows.logits,
        rows.adjusted,
        rows.adjusted_index,
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
    """Each tile's best as one integer: the logit's key in the high half, the id counted down in the
    low half."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
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
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
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
