"""Which tokens may come next in a row: by its grammar, and by the ids that a request permits."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher

from engine_core.messages import SamplingParams
from engine_core.structured.grammar import CompiledGrammar

_PARALLEL_ROWS = 16
"""From this many rows on threads share the work: with fewer, waking them costs more."""

_THREADS = 4
"""Rows of one grammar share a lock, so that many threads take longer than one."""


class Matcher:
    """Follows one row's text through its grammar. The state is created when it is first needed."""

    masked = True
    may_retry = False
    excluded = frozenset[int]()

    def __init__(
        self, grammar: CompiledGrammar, params: SamplingParams, vocab_size: int, *, written: int = 0
    ) -> None:
        """The row may sample the end tokens of `params` wherever the grammar lets the text end.
        With `ignore_eos`, or before `min_tokens`, it may only if no other token may follow. It has
        `written` tokens before the grammar's text."""
        self._grammar = grammar
        ends = params.eos_token_ids | params.stop_token_ids
        self._end_tokens = [token for token in ends if 0 <= token < vocab_size]
        self._min_tokens_left = params.min_tokens - written
        self._ignore_eos = params.ignore_eos

    @property
    def grammar(self) -> Matcher:
        return self

    @cached_property
    def state(self) -> LLMatcher:
        return self._grammar.start.deep_copy()

    @property
    def words(self) -> int:
        """The length of a mask, in uint32 words."""
        return self._grammar.words

    @property
    def complete(self) -> bool:
        """Whether the text matches and nothing may follow."""
        return self.state.is_stopped()

    def accept(self, token: int) -> bool:
        """Append a sampled token, unless it ends the text. False if the grammar does not allow
        it."""
        self._min_tokens_left -= 1
        return token in self._end_tokens or self.state.try_consume_tokens([token]) == 1

    def finish_mask(self, mask: npt.NDArray[np.uint32]) -> bool:
        """Replace the grammar's end in a mask that `state` has filled by the row's end tokens.

        False if the row cannot go on: the grammar grew too complex, or no token of the model may
        follow.
        """
        end = self._grammar.end
        word, bit = end >> 5, np.uint32(1 << (end & 31))
        may_end = bool(mask[word] & bit)
        mask[word] &= ~bit
        if self._min_tokens_left > 0:
            others = mask.copy()
            clear(others, self._end_tokens)  # which may also be text of the grammar
            if others.any():
                mask[:] = others
                return not self.state.is_error()
        if may_end and not (self._ignore_eos and mask.any()):
            _permit(mask, self._end_tokens)
        return not self.state.is_error() and bool(mask.any())


def fill_masks(bits: npt.NDArray[np.uint32], matchers: list[tuple[int, Matcher]]) -> list[int]:
    """Write into `bits` uint32[rows, words] the mask of each (index of a row, its matcher).

    Returns the indices of the rows that cannot go on, as `finish_mask` says.
    """
    states = [(matcher.state, index) for index, matcher in matchers]
    address, size = bits.ctypes.data, bits.strides[0]
    if len(states) < _PARALLEL_ROWS:
        for state, index in states:
            state.unsafe_compute_mask_ptr(address + index * size, size)
    else:
        _executor().unsafe_compute_mask_ptr(states, address, size, len(bits))
    return [index for index, matcher in matchers if not matcher.finish_mask(bits[index])]


class TokenLimits:
    """Takes tokens out of a mask. All rows of a job share it: it keeps nothing of their texts."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        """Every id of `params` is within the vocabulary."""
        self._permitted = np.full(-(-vocab_size // 32), 0xFFFFFFFF, np.uint32)
        if params.allowed_token_ids:
            self._permitted[:] = 0
            _permit(self._permitted, params.allowed_token_ids)
        clear(self._permitted, (word[0] for word in params.bad_words if len(word) == 1))
        # By the token before the last: most steps look at none.
        self._words: dict[int, list[tuple[int, ...]]] = {}
        for word in params.bad_words:
            if len(word) > 1:
                self._words.setdefault(word[-2], []).append(word)
        self._longest = max(map(len, params.bad_words), default=1) - 1

    def restrict(self, mask: npt.NDArray[np.uint32], tokens: array[int], prompt_len: int) -> bool:
        """Take the tokens that may not follow `tokens`, a prompt and a text, out of `mask`,
        uint32[vocabulary / 32]. False if none is left."""
        mask &= self._permitted
        text = tokens[max(prompt_len, len(tokens) - self._longest) :].tolist()
        if text:
            # Words of which the text has all but the last token.
            begun = (
                word
                for word in self._words.get(text[-1], ())
                if tuple(text[1 - len(word) :]) == word[:-1]
            )
            clear(mask, (word[-1] for word in begun))
        return bool(mask.any())


@cache
def _executor() -> LLExecutor:
    return LLExecutor(num_threads=min(_THREADS, len(os.sched_getaffinity(0))))


def _permit(mask: npt.NDArray[np.uint32], tokens: Iterable[int]) -> None:
    for token in tokens:
        mask[token >> 5] |= np.uint32(1 << (token & 31))


def clear(mask: npt.NDArray[np.uint32], tokens: Iterable[int]) -> None:
    for token in tokens:
        mask[token >> 5] &= ~np.uint32(1 << (token & 31))
