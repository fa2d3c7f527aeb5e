"""A prompt's log-probabilities in vLLM's form, for completions and chat."""

from collections.abc import Sequence

from server.generation.text_piece import ScoredToken
from server.schemas.common import PromptLogprob, PromptLogprobs
from server.service.token_text import TokenText


def prompt_logprobs(tokens: Sequence[ScoredToken], width: int, text: TokenText) -> PromptLogprobs:
    """An entry for each token after the first, with the token and the `width` likeliest."""
    entries: PromptLogprobs = [None]
    for token in tokens:
        if token.logprob is not None:
            entry = {token.id: PromptLogprob(token.logprob, token.rank, text[token.id])}
            for rank, (other, logprob) in enumerate(token.top[:width], 1):
                entry[other] = PromptLogprob(logprob, rank, text[other])
            entries.append(entry)
    return entries
