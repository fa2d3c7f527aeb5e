"""Copies of blocks of a cache in FP8, in the dtype that is computed with."""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl

from workers.kernels.attention.fp8 import load_scales
from workers.kernels.dependent_launch import pdl, wait_for_previous

_TOKENS = 32
"""Tokens that a program copies at once."""


def copy_contexts(
    cache: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    blocks: torch.Tensor,
    context_lens: torch.Tensor,
    query_starts: torch.Tensor,
    places: torch.Tensor,
    copies: torch.Tensor,
    window: int | None,
) -> None:
    """Copy the blocks that hold what the queries of R rows, the last of their contexts, see.

    cache         keys and values E4M3 [blocks, page, Hkv, D], contiguous, and their scales
                  int32[blocks, Hkv, page] (`workers/attention/fp8_numbers.py`)
    blocks        int32[R, N], contiguous: the rows' blocks, of which the first hold a context
    context_lens  int32[R]
    query_starts  int32[R + 1]
    places        int32[R, N], contiguous: where these blocks go in `copies`
    copies        [2, places, page, Hkv, D], contiguous, of keys and of values
    """
    page, kv_heads, head_dim = cache[0].shape[1:]
    _copy[(kv_heads, *reversed(blocks.shape))](
        *(*cache, blocks, context_lens, query_starts, places, *copies),
        WINDOW=window or 0,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PAGE=page,
        TOKENS=_TOKENS,
        DIM_BLOCK=triton.next_power_of_2(head_dim),
        num_warps=4,
        **pdl(blocks),
    )


@triton.jit(do_not_specialize=["blocks", "context_lens", "query_starts", "places"])
def _copy(
    keys, values, scales, blocks, context_lens, query_starts, places, key_copies, value_copies,
    WINDOW: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    TOKENS: tl.constexpr, DIM_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    kv_head, block, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context, seen_from = tl.load(context_lens + row), 0
    if WINDOW:
        count = tl.load(query_starts + row + 1) - tl.load(query_starts + row)
        seen_from = context - count - WINDOW + 1
    if (block * PAGE >= context) | ((block + 1) * PAGE <= seen_from):
        return
    here = row * tl.num_programs(1) + block
    source, target = tl.load(blocks + here).to(tl.int64), tl.load(places + here).to(tl.int64)
    dims = tl.arange(0, DIM_BLOCK)[None, :]
    for first in range(0, PAGE, TOKENS):
        tokens = first + tl.arange(0, TOKENS)
        found = load_scales(scales, source * PAGE + tokens, kv_head, tokens < PAGE, KV_HEADS, PAGE)
        within = (tokens[:, None] * KV_HEADS + kv_head) * HEAD_DIM + dims
        known = (tokens < PAGE)[:, None] & (dims < HEAD_DIM)
        start, end = source * (PAGE * KV_HEADS * HEAD_DIM), target * (PAGE * KV_HEADS * HEAD_DIM)
        key = tl.load(keys + start + within, mask=known).to(tl.float32) * found[0][:, None]
        value = tl.load(values + start + within, mask=known).to(tl.float32) * found[1][:, None]
        tl.store(key_copies + end + within, key.to(key_copies.dtype.element_ty), mask=known)
        tl.store(value_copies + end + within, value.to(key_copies.dtype.element_ty), mask=known)
