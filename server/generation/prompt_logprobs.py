"""vLLM's log-probabilities of a prompt's own tokens, from the engine's arrays."""

import numpy as np

from engine_core.messages import Logprobs
from server.generation.logprobs import LOWEST
from server.schemas.completions import PromptLogprob, PromptLogprobs
from server.service.token_text import TokenText


class PromptLogprobsBuilder:
    """Collects an entry for each token after a prompt's first: the token itself and the `width`
    likeliest at its place."""

    def __init__(self, spelling: TokenText, width: int) -> None:
        self._spelling = spelling
        self._width = width
        self.entries: PromptLogprobs = [None]

    def extend(self, tokens: list[int], scored: Logprobs) -> None:
        """The prompt's next N tokens and their N log-probabilities, with ranks."""
        chosen = np.frombuffer(scored.chosen, np.float32).tolist()
        ranks = np.frombuffer(scored.ranks, np.int32).tolist()
        shape = (len(chosen), scored.width)
        top_ids = np.frombuffer(scored.top_ids, np.int32).reshape(shape)[:, : self._width].tolist()
        top = np.frombuffer(scored.top, np.float32).reshape(shape)[:, : self._width].tolist()
        for row, token in enumerate(tokens):
            entry = {token: self._tell(token, chosen[row], ranks[row])}
            for place, (other, value) in enumerate(zip(top_ids[row], top[row], strict=True), 1):
                entry[other] = self._tell(other, value, place)
            self.entries.append(entry)

    def _tell(self, token: int, value: float, rank: int) -> PromptLogprob:
        return PromptLogprob(max(value, LOWEST), rank, self._spelling[token])
