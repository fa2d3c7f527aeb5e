"""One step as a stage's layers see it: flat tensors on the stage's device."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepTensors:
    """R rows, T tokens (rows one after another, then padding).

    tokens        int64[T']   T' >= T: on the CPU a step is padded to at least four tokens, because
    positions     int64[T']   a matrix product of fewer rows takes another path and rounds otherwise
    token_types   int64[T'] or None
    kv_indices  int64[T]    where each token's K and V go: block * block_size + offset; None
                              without a KV cache
    block_tables  int32[max_running + 1, max_blocks]: a row of block ids a slot, of which `slots`
    slots         int32[R] picks this step's; both None without a KV cache
    query_starts  int32[R + 1] and context_lens int32[R] (cached tokens + this step's) on the device
    query_lens, contexts      the same lengths as NumPy arrays, for planning without a read-back
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    token_types: torch.Tensor | None
    kv_indices: torch.Tensor | None
    block_tables: torch.Tensor | None
    slots: torch.Tensor | None
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    query_lens: IntArray
    contexts: IntArray

    @property
    def num_tokens(self) -> int:
        """T, without padding."""
        return int(self.query_lens.sum())

    @property
    def leading_decode_rows(self) -> int:
        """How many rows stand before the first one of several queries."""
        return leading_decode_rows(self.query_lens)


@dataclass(frozen=True, slots=True)
class Ends:
    """The last tokens of E of a step's rows, fewer than it has tokens.

    positions  int64[E'], where they are among the step's tokens; on the CPU E' is at least four,
               if there are any, and padding is the first token
    rows       themselves as a step of E rows of one token each, of which its tokens, positions and
               kv_indices are not to be used: their keys and values are cached already
    """

    positions: torch.Tensor
    rows: StepTensors


def leading_decode_rows(query_lens: IntArray) -> int:
    """How many rows stand before the first one of several queries."""
    several = np.flatnonzero(query_lens != 1)
    return int(several[0]) if len(several) else len(query_lens)
