"""OpenAI's legacy log-probabilities object of one choice, from the engine's arrays."""

import numpy as np

from engine_core.messages import Logprobs
from server.schemas.completions import CompletionLogprobs
from server.service.token_text import TokenIds, TokenText

# JSON has no infinity: what a token of probability 0 is given instead.
LOWEST = -9999.0


class LogprobsBuilder:
    """Collects entries, token by token, until somebody takes them.

    `width` is the number of alternatives that the request asked for; the chosen token is always
    among those told. `offset` is where the next token's text begins in the choice's text.
    """

    def __init__(self, spelling: TokenText | TokenIds, width: int) -> None:
        self._spelling = spelling
        self._width = width
        self.offset = 0
        self._entries = CompletionLogprobs([], [], [], [])

    def first(self, token: int, length: int) -> None:
        """A prompt's first token, `length` characters long, follows nothing."""
        self._append(token, length, None, None)

    def extend(self, tokens: list[int], lengths: list[int], logprobs: Logprobs) -> None:
        """N tokens, the lengths of their texts, and their N log-probabilities."""
        chosen = np.frombuffer(logprobs.chosen, np.float32).tolist()
        shape = (len(chosen), logprobs.width)
        top_ids = np.frombuffer(logprobs.top_ids, np.int32).reshape(shape)[:, : self._width]
        top = np.frombuffer(logprobs.top, np.float32).reshape(shape)[:, : self._width]
        for row, (token, length) in enumerate(zip(tokens, lengths, strict=True)):
            own = max(chosen[row], LOWEST)
            alternatives: dict[str, float] = {}
            for other, value in zip(top_ids[row].tolist(), top[row].tolist(), strict=True):
                alternatives.setdefault(self._spelling[other], max(value, LOWEST))
            alternatives.setdefault(self._spelling[token], own)
            self._append(token, length, own, alternatives)

    def take(self) -> CompletionLogprobs:
        """The entries since the last call."""
        entries, self._entries = self._entries, CompletionLogprobs([], [], [], [])
        return entries

    def _append(
        self, token: int, length: int, own: float | None, top: dict[str, float] | None
    ) -> None:
        entries = self._entries
        entries.text_offset.append(self.offset)
        entries.token_logprobs.append(own)
        entries.tokens.append(self._spelling[token])
        entries.top_logprobs.append(top)
        self.offset += length
