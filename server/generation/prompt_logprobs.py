"""A prompt's log-probabilities, in vLLM's form for completions and chat."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

import msgspec

from server.generation.text_piece import ScoredToken
from server.schemas.common import PromptLogprob, PromptLogprobs
from server.service.token_text import TokenText

NUMBERS_AT_ONCE = 1 << 14
"""So many log-probabilities are encoded in 5 to 10 ms."""


def prompt_logprobs(tokens: Sequence[ScoredToken], width: int, text: TokenText) -> PromptLogprobs:
    """An entry for each token, with that and the `width` likeliest; None for the first one, also
    where the engine has not computed any in time."""
    return [None, *_entries(tokens, width, text)]


async def encoded_prompt_logprobs(
    tokens: Sequence[ScoredToken], width: int, text: TokenText
) -> bytes:
    """The same as JSON, with other requests in between."""
    parts = [
        msgspec.json.encode(entries)[1:-1]
        async for some in in_turns(tokens, width)
        if (entries := _entries(some, width, text))
    ]
    return b"[" + b",".join([b"null", *parts]) + b"]"


async def in_turns(
    tokens: Sequence[ScoredToken], width: int
) -> AsyncGenerator[Sequence[ScoredToken]]:
    """The tokens, with `width` alternatives each, as many at a time as are encoded at once. Other
    requests run in between: a long prompt has 200 MB of scores."""
    count = max(1, NUMBERS_AT_ONCE // (width + 1))
    for begin in range(0, len(tokens), count):
        yield tokens[begin : begin + count]
        await asyncio.sleep(0)


def _entries(
    tokens: Sequence[ScoredToken], width: int, text: TokenText
) -> list[dict[int, PromptLogprob]]:
    entries: list[dict[int, PromptLogprob]] = []
    for token in tokens:
        if token.logprob is None:
            continue  # the first one follows nothing
        entry = {token.id: PromptLogprob(token.logprob, token.rank, text[token.id])}
        for rank, (other, logprob) in enumerate(token.top[:width], 1):
            entry[other] = PromptLogprob(logprob, rank, text[other])
        entries.append(entry)
    return entries
