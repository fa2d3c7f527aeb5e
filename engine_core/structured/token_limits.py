"""The tokens that a request permits, whatever its text says: `allowed_token_ids`, `bad_words`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from engine_core.messages import SamplingParams


class TokenLimits:
    """Takes tokens out of a mask. All rows of a job share it: it keeps nothing of their texts."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        """Every id of `params` is within the vocabulary."""
        self._permitted = np.full(-(-vocab_size // 32), 0xFFFFFFFF, np.uint32)
        if params.allowed_token_ids:
            self._permitted[:] = 0
            for token in params.allowed_token_ids:
                self._permitted[token >> 5] |= np.uint32(1 << (token & 31))
        _clear(self._permitted, (word[0] for word in params.bad_words if len(word) == 1))
        # By the token before the last: most steps look at none.
        self._words: dict[int, list[tuple[int, ...]]] = {}
        for word in params.bad_words:
            if len(word) > 1:
                self._words.setdefault(word[-2], []).append(word)
        self._longest = max(map(len, params.bad_words), default=1) - 1

    @classmethod
    def of(cls, params: SamplingParams, vocab_size: int) -> TokenLimits | None:
        """None for a request that has no limits."""
        limited = params.allowed_token_ids or params.bad_words
        return cls(params, vocab_size) if limited else None

    def restrict(self, mask: npt.NDArray[np.uint32], tokens: array[int], prompt_len: int) -> bool:
        """Take the tokens that may not follow `tokens`, of which the first are the prompt's, out of
        `mask`, uint32[vocabulary / 32]. False if none is left."""
        mask &= self._permitted
        text = tokens[max(prompt_len, len(tokens) - self._longest) :].tolist()
        if text:
            _clear(mask, _last_tokens(self._words.get(text[-1], ()), text))
        return bool(mask.any())


def _last_tokens(words: Iterable[tuple[int, ...]], text: Sequence[int]) -> Iterable[int]:
    """What would complete a word: `text` ends with all but its last token."""
    for word in words:
        if tuple(text[1 - len(word) :]) == word[:-1]:
            yield word[-1]


def _clear(mask: npt.NDArray[np.uint32], tokens: Iterable[int]) -> None:
    for token in tokens:
        mask[token >> 5] &= ~np.uint32(1 << (token & 31))
