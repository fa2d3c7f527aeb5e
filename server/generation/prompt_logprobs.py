"""A prompt's log-probabilities, in vLLM's form for completions and chat."""

from collections.abc import Sequence

from server.generation.score_columns import score_columns
from server.generation.text_piece import ScoredToken
from server.schemas.common import PromptLogprob, PromptLogprobs
from server.service.token_text import TokenText


async def prompt_logprobs(
    tokens: Sequence[ScoredToken], width: int, text: TokenText
) -> PromptLogprobs:
    """An entry for each token, with that and the `width` likeliest. The first one's is None, also
    where the engine has not computed any in time."""
    if not tokens:
        return [None]
    (entries,) = await score_columns(
        [tokens], width, lambda some: [[_entry(token, width, text) for token in some]]
    )
    return entries


def _entry(token: ScoredToken, width: int, text: TokenText) -> dict[int, PromptLogprob] | None:
    if token.logprob is None:
        return None  # the first one follows nothing
    entry = {token.id: PromptLogprob(token.logprob, token.rank, text[token.id])}
    for rank, (other, logprob) in enumerate(token.top[:width], 1):
        entry[other] = PromptLogprob(logprob, rank, text[other])
    return entry
