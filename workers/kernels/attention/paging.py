"""Where in a paged cache a row's tokens are."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def tile_kv_indices(table, start, end, PAGE: tl.constexpr, TILE: tl.constexpr):
    """int64[TILE]: cache slots of the tokens from `start`, a multiple of TILE, on.

    `table` points to the row's block ids. What it holds for tokens from `end` on is not read. A
    PAGE of 0 is no paging: tokens are one after another.
    """
    tokens = start + tl.arange(0, TILE)
    if PAGE == 0:
        places = tokens.to(tl.int64)
    elif PAGE % TILE == 0:
        block = tl.load(table + start // PAGE, mask=start < end, other=0)
        places = block.to(tl.int64) * PAGE + start % PAGE + tl.arange(0, TILE)
    else:
        blocks = tl.load(table + tokens // PAGE, mask=tokens < end, other=0)
        places = blocks.to(tl.int64) * PAGE + tokens % PAGE
    return places
