"""One pass over the logits: the highest of each group, and the sum of its exponentials."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from workers.kernels.sampling.logit_rows import LogitRows, load_logits

GROUP = 128
"""Logits a group. Small, so that pivots, which are found from the peaks, are tight."""

GROUPS_IN_TILE = 16

_UNALIGNED = ["adjusted_index", "inverse_temperature", "sums"]
"""As `workers.kernels.sampling.candidates.UNALIGNED`."""


class GroupStatistics(NamedTuple):
    """Each row's G = ceil(V / GROUP) groups of logits.

    peaks  float32[S, G], the highest logit
    sums   float32[S, G], sum of exp((logit - highest) / temperature); NaN where the group holds NaN
           or +inf
    """

    peaks: torch.Tensor
    sums: torch.Tensor


def group_statistics(
    rows: LogitRows, inverse_temperature: torch.Tensor | None = None
) -> GroupStatistics:
    """`inverse_temperature` float32[S]; None is a temperature of 1."""
    count, vocabulary = rows.logits.shape
    groups = -(-vocabulary // GROUP)
    device = rows.logits.device
    peaks, sums = torch.empty((2, count, groups), dtype=torch.float32, device=device)
    _group_statistics[(count, triton.cdiv(groups, GROUPS_IN_TILE))](
        rows.logits,
        rows.adjusted,
        rows.adjusted_index,
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
