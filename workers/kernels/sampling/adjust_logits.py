"""Masks, biases and penalties, on the rows that have any."""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

TILE = 1024

_UNALIGNED = [
    *("rows", "slots", "penalties", "mask_rows"),
    *("bias_indices", "bias_ids", "bias_values"),
]
"""As `workers.kernels.sampling.draw_tokens.UNALIGNED`."""


def adjusted_logits(
    logits: torch.Tensor,
    rows: torch.Tensor,
    slots: torch.Tensor,
    penalties: torch.Tensor,
    counts: torch.Tensor | None,
    mask: tuple[torch.Tensor, torch.Tensor] | None,
    biases: Sequence[torch.Tensor],
) -> torch.Tensor:
    """float32[A, V]: the rows' logits after mask, bias and penalties, in this order.

    A penalty of 0.1 on a bfloat16 logit of 20 would be lost. `rows`, `slots` and what `Adjustments`
    says of the others are on the device.

    penalties  float32[3, A]
    counts     int16[max_running, V]; None where no row has penalties
    mask       (int32[A], the words of a `TokenMask`); None without a mask
    biases     (int32[N], int32[N], float32[N]); empty without biases
    """
    vocabulary, count = logits.shape[1], len(rows)
    out = torch.empty((count, vocabulary), dtype=torch.float32, device=logits.device)
    mask_rows, words = mask or (None, None)
    width = 0 if words is None else words.shape[1]
    arguments = (logits, rows, slots, penalties, counts, mask_rows, words, out, count, width)
    flags = {
        "VOCABULARY": vocabulary,
        "TILE": TILE,
        "COUNTED": counts is not None,
        "MASKED": mask is not None,
    }
    _adjust[(count, triton.cdiv(vocabulary, TILE))](*arguments, **flags, num_warps=4)
    if biases:
        entries = len(biases[0])
        _adjust_biased[(triton.cdiv(entries, TILE),)](*arguments, *biases, entries, **flags)
    return out


@triton.jit
def _adjusted(
    values, indices, ids, inside, slots, penalties, counts, mask_rows, words, count, width,
    VOCABULARY: tl.constexpr, COUNTED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Mask and penalties on biased `values` of tokens `ids`, in the rows `indices` of the A."""
    if MASKED:
        mask_row = tl.load(mask_rows + indices, mask=inside, other=-1).to(tl.int64)
        masked = mask_row >= 0
        word = tl.load(words + mask_row * width + ids // 32, mask=inside & masked, other=0)
        forbidden = masked & (((word >> (ids % 32)) & 1) == 0)
        values = tl.where(forbidden, float("-inf"), values)
    if COUNTED:
        slot = tl.load(slots + indices, mask=inside, other=-1).to(tl.int64)
        seen = tl.load(counts + slot * VOCABULARY + ids, mask=inside & (slot >= 0), other=0).to(
            tl.int32
        )
        presence = tl.load(penalties + indices, mask=inside, other=0.0)
        frequency = tl.load(penalties + count + indices, mask=inside, other=0.0)
        repetition = tl.load(penalties + 2 * count + indices, mask=inside, other=1.0)
        repeated = tl.where(values > 0, values / repetition, values * repetition)
        sampled = seen >> 1
        repeated -= frequency * sampled.to(tl.float32)
        repeated -= tl.where(sampled > 0, presence, 0.0)
        values = tl.where(seen != 0, repeated, values)
    return values


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=_UNALIGNED)
def _adjust(
    logits, rows, slots, penalties, counts, mask_rows, words, out, count, width,
    VOCABULARY: tl.constexpr, TILE: tl.constexpr, COUNTED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0)
    ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = ids < VOCABULARY
    row = tl.load(rows + index).to(tl.int64)
    values = tl.load(logits + row * VOCABULARY + ids, mask=inside, other=0.0).to(tl.float32)
    values = _adjusted(
        values, index + tl.zeros_like(ids), ids, inside, slots, penalties, counts, mask_rows,
        words, count, width, VOCABULARY, COUNTED, MASKED,
    )  # fmt: skip
    tl.store(out + index.to(tl.int64) * VOCABULARY + ids, values, mask=inside)


@triton.jit(do_not_specialize=["count", "entries"], do_not_specialize_on_alignment=_UNALIGNED)
def _adjust_biased(
    logits, rows, slots, penalties, counts, mask_rows, words, out, count, width,
    bias_indices, bias_ids, bias_values, entries,
    VOCABULARY: tl.constexpr, TILE: tl.constexpr, COUNTED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Again, for the tokens that a bias names: it comes before the penalties."""
    entry = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = entry < entries
    indices = tl.load(bias_indices + entry, mask=inside, other=0)
    ids = tl.load(bias_ids + entry, mask=inside, other=0)
    row = tl.load(rows + indices, mask=inside, other=0).to(tl.int64)
    values = tl.load(logits + row * VOCABULARY + ids, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(bias_values + entry, mask=inside, other=0.0)
    values = _adjusted(
        values, indices, ids, inside, slots, penalties, counts, mask_rows, words, count, width,
        VOCABULARY, COUNTED, MASKED,
    )  # fmt: skip
    tl.store(out + indices.to(tl.int64) * VOCABULARY + ids, values, mask=inside)
