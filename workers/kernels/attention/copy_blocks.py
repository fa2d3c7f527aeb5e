"""Copies blocks of the KV cache in all layers with one launch."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.kernels.launch import pdl

_NUMBERS = 8192
"""Numbers a program copies."""


def copy_blocks(cache: torch.Tensor, copies: torch.Tensor) -> None:
    """Copy blocks of `cache` [layers, 2, blocks, ...], contiguous, by `copies` int32[N, 2]: (from,
    to), N > 0. No block is copied to twice, or to by one copy and from by another."""
    numbers = cache[0, 0, 0].numel()
    assert cache.is_contiguous()
    _copy_blocks[(triton.cdiv(numbers, _NUMBERS), len(copies), cache.shape[0] * cache.shape[1])](
        cache,
        copies,
        cache.shape[2],
        NUMBERS=numbers,
        SIZE=_NUMBERS,
        num_warps=8,
        **pdl(cache),
    )


@triton.jit(do_not_specialize=["copies", "blocks"])
def _copy_blocks(
    cache, copies, blocks, NUMBERS: tl.constexpr, SIZE: tl.constexpr, PDL: tl.constexpr
):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    copy, plane = copies + tl.program_id(1) * 2, tl.program_id(2).to(tl.int64) * blocks
    offsets = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    source, target = plane + tl.load(copy), plane + tl.load(copy + 1)
    found = tl.load(cache + source * NUMBERS + offsets, mask=offsets < NUMBERS)
    tl.store(cache + target * NUMBERS + offsets, found, mask=offsets < NUMBERS)
