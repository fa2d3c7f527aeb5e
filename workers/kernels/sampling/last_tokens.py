"""Each slot's newest token, kept on the device between steps."""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl

from workers.kernels.dependent_launch import pdl, wait_for_previous

_BLOCK = 128


def keep(last_tokens: torch.Tensor, slots: torch.Tensor, tokens: torch.Tensor) -> None:
    """last_tokens[slots] = max(tokens, 0): int64[N], int32[S], each slot once, and int32[S]."""
    count = len(slots)
    _keep[(triton.cdiv(count, _BLOCK),)](
        last_tokens, slots, tokens, count, BLOCK=_BLOCK, num_warps=1
    )


def look_up(
    last_tokens: torch.Tensor, slots: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor
) -> None:
    """out = last_tokens[slots] where `tokens` is negative, else `tokens`. last_tokens int64[N],
    slots int32[T]; tokens and out int64[T], which may be the same."""
    count = len(slots)
    _look_up[(triton.cdiv(count, _BLOCK),)](
        last_tokens, slots, tokens, out, count, BLOCK=_BLOCK, num_warps=1, **pdl(out)
    )


@triton.jit(do_not_specialize=["slots", "tokens", "count"])
def _keep(last_tokens, slots, tokens, count, BLOCK: tl.constexpr):
    here = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = here < count
    slot = tl.load(slots + here, mask=inside, other=0)
    token = tl.load(tokens + here, mask=inside, other=0)
    tl.store(last_tokens + slot, tl.maximum(token, 0).to(tl.int64), mask=inside)


@triton.jit(do_not_specialize=["slots", "tokens", "out", "count"])
def _look_up(last_tokens, slots, tokens, out, count, BLOCK: tl.constexpr, PDL: tl.constexpr):
    wait_for_previous(PDL)
    here = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = here < count
    slot = tl.load(slots + here, mask=inside, other=0)
    token = tl.load(tokens + here, mask=inside, other=0)
    last = tl.load(last_tokens + slot, mask=inside & (token < 0), other=0)
    tl.store(out + here, tl.where(token < 0, last, token), mask=inside)
