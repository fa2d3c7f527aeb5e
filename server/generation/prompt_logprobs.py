"""A prompt's log-probabilities as JSON, in vLLM's form for completions and chat."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from msgspec import Raw

from server.generation.text_piece import ScoredToken
from server.schemas.common import PromptLogprob
from server.service.token_text import TokenText

_NUMBERS_AT_ONCE = 1 << 14
"""So many log-probabilities are encoded in 5 to 10 ms."""


async def in_turns(tokens: list[ScoredToken], width: int) -> AsyncGenerator[list[ScoredToken]]:
    """The tokens, with `width` alternatives each, as many at a time as are encoded at once. Other
    requests run in between: a long prompt has 200 MB of scores."""
    count = max(1, _NUMBERS_AT_ONCE // (width + 1))
    for begin in range(0, len(tokens), count):
        yield tokens[begin : begin + count]
        await asyncio.sleep(0)


async def prompt_logprobs(tokens: list[ScoredToken], width: int, text: TokenText) -> Raw:
    """A list of an entry for each token, with that and the `width` likeliest; null for the first
    one."""
    parts = [b"[null"]
    async for some in in_turns(tokens, width):
        entries = [_entry(token, width, text) for token in some if token.logprob is not None]
        if entries:
            parts.append(msgspec.json.encode(entries)[1:-1])
    parts[-1] += b"]"
    return Raw(b",".join(parts))


def _entry(token: ScoredToken, width: int, text: TokenText) -> dict[int, PromptLogprob]:
    assert token.logprob is not None, "the first one follows nothing"
    entry = {token.id: PromptLogprob(token.logprob, token.rank, text[token.id])}
    for rank, (other, logprob) in enumerate(token.top[:width], 1):
        entry[other] = PromptLogprob(logprob, rank, text[other])
    return entry
