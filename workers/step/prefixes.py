"""Prefixes of a step that are attended once for all rows that share them, as tensors."""

from typing import NamedTuple

import torch


class PrefixTensors(NamedTuple):
    """Which prefixes are attended once, in memory that a captured step reads: int32[N, 6], int32[R]
    and int32[R] (see `attention.prefix_tiles.PrefixTables`); a row has at most `most_parts`."""

    tiles: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    most_parts: int


class PrefixParts(NamedTuple):
    """What R rows know of their prefixes, each divided into at most P parts. Tokens of the step
    behind the first T have no prefix.

    outputs       [P, T, H, D], log_sum_exps float32[P, T, H] (natural logarithm), contiguous; not
                  written for a token's unused parts
    starts        int32[R]  tokens of the row's prefix, whole blocks; 0 without a prefix
    counts        int32[R]  parts of the row's prefix; 0 without a prefix
    """

    outputs: torch.Tensor
    log_sum_exps: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor

    @property
    def stride(self) -> int:
        """T * H: from a part to the next, in heads."""
        return self.log_sum_exps.stride(0)
