"""Which tokens may come next in a row that follows a grammar, and the masks of a step's rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher

from engine_core.messages import SamplingParams
from engine_core.structured.grammar import CompiledGrammar

_PARALLEL_ROWS = 16
"""From this many rows on threads share the work: with fewer, waking them costs more."""


class Matcher:
    """Follows one row's text through its grammar. The state is created when it is first needed."""

    def __init__(self, grammar: CompiledGrammar, params: SamplingParams, vocab_size: int) -> None:
        """The row may sample the end tokens of `params` wherever the grammar lets the text end;
        with `ignore_eos`, or before `min_tokens`, only if no other token may follow."""
        self._grammar = grammar
        ends = params.eos_token_ids | params.stop_token_ids
        self._end_tokens = [token for token in ends if 0 <= token < vocab_size]
        self._min_tokens_left = params.min_tokens
        self._ignore_eos = params.ignore_eos
        self._state: LLMatcher | None = None

    @property
    def state(self) -> LLMatcher:
        """llguidance's matcher."""
        if self._state is None:
            self._state = self._grammar.start.deep_copy()
        return self._state

    @property
    def words(self) -> int:
        """The length of a mask, in uint32 words."""
        return self._grammar.words

    @property
    def complete(self) -> bool:
        """Whether the text matches and nothing may follow."""
        return self._state is not None and self._state.is_stopped()

    def accept(self, token: int) -> bool:
        """Append a sampled token; False if the grammar does not allow it. An end token is no part
        of the text."""
        self._min_tokens_left -= 1
        return token in self._end_tokens or self.state.consume_token(token)

    def finish_mask(self, mask: npt.NDArray[np.uint32]) -> bool:
        """Replace the grammar's end in a mask that `state` has filled by the row's end tokens.

        False if the row cannot go on: the grammar grew too complex, or no token of the model may
        follow.
        """
        end = self._grammar.end
        word, bit = end >> 5, np.uint32(1 << (end & 31))
        may_end = bool(mask[word] & bit)
        mask[word] &= ~bit
        if self._min_tokens_left > 0 and self._forbid_ends(mask):
            return not self.state.is_error()
        if may_end and not (self._ignore_eos and mask.any()):
            for token in self._end_tokens:
                mask[token >> 5] |= np.uint32(1 << (token & 31))
        return not self.state.is_error() and bool(mask.any())

    def _forbid_ends(self, mask: npt.NDArray[np.uint32]) -> bool:
        """Forbid the end tokens, which may also be text of the grammar, unless nothing else is
        allowed: then return False."""
        others = mask.copy()
        for token in self._end_tokens:
            others[token >> 5] &= ~np.uint32(1 << (token & 31))
        if not others.any():
            return False
        mask[:] = others
        return True


class MaskFiller:
    """Computes the masks of many rows, in threads where there are enough rows."""

    def __init__(self) -> None:
        self._executor: LLExecutor | None = None

    def fill(self, bits: npt.NDArray[np.uint32], matchers: list[tuple[int, Matcher]]) -> list[int]:
        """Write into `bits` uint32[rows, words] the mask of each (index of a row, its matcher).

        Returns the indices of the rows that cannot go on: their grammar grew too complex, or no
        token of the model may follow.
        """
        states = [(matcher.state, index) for index, matcher in matchers]
        address, size = bits.ctypes.data, bits.strides[0]
        if len(states) < _PARALLEL_ROWS:
            for state, index in states:
                state.unsafe_compute_mask_ptr(address + index * size, size)
        else:
            if self._executor is None:
                self._executor = LLExecutor()
            self._executor.unsafe_compute_mask_ptr(states, address, size, len(bits))
        return [index for index, matcher in matchers if not matcher.finish_mask(bits[index])]
