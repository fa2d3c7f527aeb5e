"""The tokens that each penalised slot has seen, by id."""

import numpy as np
import torch

from workers.device.transfer import on_device
from workers.step.rows import IntArray

_IN_PROMPT = 1
_ONE_SAMPLED = 2
_FULL = np.iinfo(np.int16).max - 1
"""Counting stops after a token was sampled 16,383 times: no penalty can notice the difference."""


class TokenCounts:
    """Dense counts, int16[max_running, V]: twice how often a token was sampled, plus 1 if the
    prompt holds it.

    Held on the device, because an ahead step must see the token of the step before it: each step
    counts its own tokens there, in stream order. On CUDA the table is allocated at once, so that it
    is part of the memory measured at start; on the CPU at the first row with a penalty.
    """

    def __init__(self, max_running: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (max_running, vocab_size)
        self._device = device
        self._table = self._allocate() if device.type == "cuda" else None

    @property
    def table(self) -> torch.Tensor:
        """int16[max_running, V]; allocated by the first use."""
        if self._table is None:
            self._table = self._allocate()
        return self._table

    def begin(self, slot: int, known: IntArray, prompt_len: int) -> None:
        """A request moves into `slot` with `known` tokens, of which the first `prompt_len` are the
        prompt."""
        counts = np.bincount(known[prompt_len:], minlength=self._shape[1]) * _ONE_SAMPLED
        row = np.minimum(counts, _FULL).astype(np.int16)
        row[known[:prompt_len]] |= _IN_PROMPT
        self.table[slot] = on_device(row, self._device)

    def add(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Count one token [A] for each of A different slots [A] (int64 both).

        A failed row's -1 counts as 0: nothing is sampled for that row again.
        """
        table = self.table
        cells = (slots, tokens.clamp(min=0))
        counts = table[cells]
        table[cells] = torch.where(counts < _FULL, counts + _ONE_SAMPLED, counts)

    def clear(self) -> None:
        """Forget everything."""
        if self._table is not None:
            self._table.zero_()

    def _allocate(self) -> torch.Tensor:
        return torch.zeros(self._shape, dtype=torch.int16, device=self._device)
