"""The engine's arrays of log-probabilities, token by token."""

from array import array
from collections.abc import Sequence

from engine_core.messages import Logprobs
from server.generation.text_piece import ScoredToken

# The log-probability of a token of probability 0: JSON, the form of answers, has no infinity.
LOWEST = -9999.0


def scored_tokens(
    tokens: Sequence[int], logprobs: Logprobs, width: int, offsets: Sequence[int] | None = None
) -> list[ScoredToken]:
    """N tokens with their N log-probabilities, the `width` likeliest at the position of each, and
    where each begins in the choice's text."""
    # A step brings one token as a rule: NumPy would take longer.
    chosen, top = array("f", logprobs.chosen), array("f", logprobs.top)
    ranks, top_ids = array("i", logprobs.ranks), array("i", logprobs.top_ids)
    entries: list[ScoredToken] = []
    for i, token in enumerate(tokens):
        begin = i * logprobs.width
        end = begin + min(width, logprobs.width)
        likeliest = [(top_ids[j], max(top[j], LOWEST)) for j in range(begin, end)]
        rank = ranks[i] if ranks else 0
        offset = 0 if offsets is None else offsets[i]
        entries.append(ScoredToken(token, max(chosen[i], LOWEST), likeliest, rank, offset))
    return entries
