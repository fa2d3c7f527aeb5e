"""Log-probabilities as lists for JSON, encoded a part at a time where there are many."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec import Raw

from server.generation.text_piece import ScoredToken
from server.schemas.common import PromptLogprob, PromptLogprobs
from server.service.token_text import TokenText

_NUMBERS_AT_ONCE = 1 << 14
"""So many log-probabilities are encoded in 5 to 10 ms."""


async def score_columns(
    tokens: Sequence[Sequence[ScoredToken]],
    width: int,
    columns: Callable[[Sequence[ScoredToken]], Sequence[list[Any]]],
) -> Sequence[Any]:
    """The `columns` of all these tokens one behind the other, with `width` alternatives each.

    Long columns are JSON (`Raw`): other requests run between their parts, for a long prompt has
    200 MB of scores.
    """
    count = max(1, _NUMBERS_AT_ONCE // (width + 1))
    if sum(map(len, tokens)) <= count:
        return columns([*chain.from_iterable(tokens)])
    parts: list[list[bytes]] = []
    for row in tokens:
        for begin in range(0, len(row), count):
            made = columns(row[begin : begin + count])
            parts.append([msgspec.json.encode(column)[1:-1] for column in made])
            await asyncio.sleep(0)
    return [Raw(b"[%b]" % b",".join(column)) for column in zip(*parts, strict=True)]


async def prompt_logprobs(
    tokens: Sequence[ScoredToken], width: int, text: TokenText
) -> PromptLogprobs:
    """A prompt's, in vLLM's form: an entry for each token, with that and the `width` likeliest. The
    first one's is None, also where the engine has not computed any in time."""
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
