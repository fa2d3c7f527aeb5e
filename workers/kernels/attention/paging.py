"""KV indices of a row's tokens."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def tile_kv_indices(table, start, end, PAGE: tl.constexpr, TILE: tl.constexpr):
    """KV indices int64[TILE] of the tokens from `start` on, a multiple of TILE.

    `table` points to the row's block ids, and is not read for tokens from `end` on. A PAGE of 0
    means no paging: a token's index is its position.
    """
    tokens = start + tl.arange(0, TILE)
    if PAGE == 0:
        kv_indices = tokens.to(tl.int64)
    elif PAGE % TILE == 0:
        block = tl.load(table + start // PAGE, mask=start < end, other=0)
        kv_indices = block.to(tl.int64) * PAGE + start % PAGE + tl.arange(0, TILE)
    else:
        blocks = tl.load(table + tokens // PAGE, mask=tokens < end, other=0)
        kv_indices = blocks.to(tl.int64) * PAGE + tokens % PAGE
    return kv_indices
