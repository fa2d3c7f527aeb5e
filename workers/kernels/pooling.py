"""Averages of the token states of each text, read once."""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl

from workers.contract.model_config import PoolingMode
from workers.kernels.dependent_launch import pdl, wait_for_previous

_TOKENS, _COLUMNS = 64, 128
"""A tile of states."""


def average(
    states: torch.Tensor, starts: torch.Tensor, unpooled: torch.Tensor | None, mode: PoolingMode
) -> torch.Tensor:
    """Pool the states [T', D], contiguous, of rows that begin at `starts` int32[R + 1], without the
    first `unpooled` tokens int32[R] of each: float32[R, D].

    The `mode` is "mean", "mean_sqrt_len_tokens", or "weightedmean" by the place in the row, from 1.
    A row's result does not depend on the others."""
    count, size = len(starts) - 1, states.shape[1]
    out = torch.empty((count, size), dtype=torch.float32, device=states.device)
    _average[(count, triton.cdiv(size, _COLUMNS))](
        states,
        starts,
        starts if unpooled is None else unpooled,
        out,
        SIZE=size,
        MODE=mode,
        PROMPTS=unpooled is not None,
        TOKENS=_TOKENS,
        COLUMNS=_COLUMNS,
        num_warps=8,
        **pdl(states),
    )
    return out


@triton.jit(do_not_specialize=["starts", "unpooled"])
def _average(
    states, starts, unpooled, out, SIZE: tl.constexpr, MODE: tl.constexpr, PROMPTS: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    row = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    start, stop = tl.load(starts + row), tl.load(starts + row + 1)
    skipped = tl.load(unpooled + row) if PROMPTS else 0
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(start + skipped, stop, TOKENS):
        tokens = first + tl.arange(0, TOKENS)
        inside = (tokens < stop)[:, None] & (columns < SIZE)[None, :]
        places = tokens.to(tl.int64)[:, None] * SIZE + columns[None, :]
        values = tl.load(states + places, mask=inside, other=0.0).to(tl.float32)
        if MODE == "weightedmean":
            values *= (tokens - start + 1).to(tl.float32)[:, None]
        total += tl.sum(values, axis=0)
    weight = (stop - start - skipped).to(tl.float32)
    if MODE == "weightedmean":
        weight *= (stop - start + skipped + 1).to(tl.float32) / 2
    elif MODE == "mean_sqrt_len_tokens":
        weight = tl.sqrt(weight)
    tl.store(out + row.to(tl.int64) * SIZE + columns, total / weight, mask=columns < SIZE)
