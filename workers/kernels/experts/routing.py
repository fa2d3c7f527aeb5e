"""Routing of tokens to experts on the device: the choice, the groups by experts, and the sum of
what experts have computed. Nothing is read on the host, so that a CUDA graph is right for any."""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl

from workers.contract.experts import ExpertsConfig
from workers.kernels.dependent_launch import pdl, wait_for_previous

_PAIRS = 1024
"""Pairs that a program reads at once."""


def chooses(config: ExpertsConfig) -> bool:
    """Whether `choose` knows this kind of routing."""
    return config.scoring != "sparsemixer" and config.groups == 1


def choose(
    logits: torch.Tensor, config: ExpertsConfig, correction: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts int32[N, K] and weights float32[N, K] of tokens with logits [N, E]. Of equal scores
    the first is taken. What is no number is never chosen while there is one."""
    count, active = len(logits), config.active
    experts = torch.empty((count, active), dtype=torch.int32, device=logits.device)
    weights = torch.empty((count, active), dtype=torch.float32, device=logits.device)
    block = triton.next_power_of_2(config.count)
    _choose[(count,)](
        *(logits, correction, experts, weights, logits.stride(0)),
        *(config.least_sum, config.scale),
        EXPERTS=config.count,
        ACTIVE=active,
        SCORING=config.scoring,
        NORMALISED=config.normalised,
        BLOCK=block,
        ACTIVE_BLOCK=triton.next_power_of_2(active),
        num_warps=min(max(block // 128, 1), 4),
        **pdl(logits),
    )
    return experts, weights


@triton.jit
def _choose(
    logits, correction, experts, weights, stride, least_sum, scale, EXPERTS: tl.constexpr,
    ACTIVE: tl.constexpr, SCORING: tl.constexpr, NORMALISED: tl.constexpr, BLOCK: tl.constexpr,
    ACTIVE_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    expert, places = tl.arange(0, BLOCK), tl.arange(0, ACTIVE_BLOCK)
    inside = expert < EXPERTS
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    score = tl.load(logits + row * stride + expert, mask=inside, other=float("-inf"))
    score = score.to(tl.float32)
    if SCORING == "sigmoid":
        score = 1 / (1 + tl.exp(-score))
    elif SCORING == "softmax":
        score = tl.exp(score - tl.max(score, axis=0))
        score /= tl.sum(score, axis=0)
    ranked = score
    if correction is not None:
        ranked += tl.load(correction + expert, mask=inside, other=0.0)
    # A number for each: another comparison could choose an expert that is none.
    ranked = tl.where(inside & (ranked > float("-inf")), ranked, float("-inf"))
    chosen, own = tl.zeros((ACTIVE_BLOCK,), tl.int32), tl.zeros((ACTIVE_BLOCK,), tl.float32)
    for place in tl.static_range(ACTIVE):
        best = tl.argmax(ranked, axis=0, tie_break_left=True)
        chosen = tl.where(places == place, best, chosen)
        its = tl.sum(tl.where(expert == best, score, 0.0), axis=0)
        own = tl.where(places == place, its, own)
        ranked = tl.where(expert == best, float("-inf"), ranked)
    present = places < ACTIVE
    if SCORING == "chosen":
        own = tl.exp(own - tl.max(tl.where(present, own, float("-inf")), axis=0))
    if NORMALISED:
        total = tl.sum(tl.where(present, own, 0.0), axis=0)
        own /= tl.maximum(total, least_sum)
    tl.store(experts + row * ACTIVE + places, chosen, mask=present)
    tl.store(weights + row * ACTIVE + places, own * scale, mask=present)


def group(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of [N, K] by experts, then by tokens: their order int32[N * K], and where those of each
    of `count` experts end, int32[count]. A counting sort, in which a program finds one expert's."""
    order = torch.empty(experts.numel(), dtype=torch.int32, device=experts.device)
    ends = torch.empty(count, dtype=torch.int32, device=experts.device)
    block = min(triton.next_power_of_2(experts.numel()), _PAIRS)
    _group[(count,)](
        experts, order, ends, experts.numel(), BLOCK=block, num_warps=4, **pdl(experts)
    )
    return order, ends


@triton.jit(do_not_specialize=["count"])
def _group(experts, order, ends, count, BLOCK: tl.constexpr, PDL: tl.constexpr):
    wait_for_previous(PDL)
    own, lanes = tl.program_id(0), tl.arange(0, BLOCK)
    before = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, count, BLOCK):
        pairs = start + lanes
        theirs = tl.load(experts + pairs, mask=pairs < count, other=own)
        before += (theirs < own).to(tl.int32)
    place = tl.sum(before, axis=0)
    for start in range(0, count, BLOCK):
        pairs = start + lanes
        theirs = tl.load(experts + pairs, mask=pairs < count, other=-1)
        mine = (theirs == own).to(tl.int32)
        tl.store(order + place + tl.cumsum(mine, axis=0) - 1, pairs, mask=mine > 0)
        place += tl.sum(mine, axis=0)
    tl.store(ends + own, place)


def combine(residual: torch.Tensor, outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`residual` [N, D], contiguous, which is overwritten and returned, plus each token's sum of
    `outputs` [N * K, D] times `weights` [N, K]. In float32, rounded once."""
    count, size = residual.shape
    block = min(triton.next_power_of_2(size), 1024)
    _combine[(count, triton.cdiv(size, block))](
        *(residual, outputs, weights),
        ACTIVE=weights.shape[1],
        SIZE=size,
        BLOCK=block,
        num_warps=4,
        **pdl(residual),
    )
    return residual


@triton.jit
def _combine(
    residual, outputs, weights, ACTIVE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    wait_for_previous(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    target = residual + row * SIZE + columns
    total = tl.load(target, mask=inside, other=0.0).to(tl.float32)
    for place in tl.static_range(ACTIVE):
        pair = row * ACTIVE + place
        output = tl.load(outputs + pair * SIZE + columns, mask=inside, other=0.0)
        total += tl.load(weights + pair).to(tl.float32) * output.to(tl.float32)
    tl.store(target, total.to(residual.dtype.element_ty), mask=inside)
