"""What a row has generated, in no API's form: each endpoint formats it in its own."""

from collections.abc import Sequence

import msgspec

from server.schemas.common import FinishReason


class ScoredToken(msgspec.Struct, frozen=True):
    """A token with its log-probability, None for a prompt's first token, which follows nothing.

    `top` holds the likeliest tokens at its position with theirs, best first. `rank` is the position
    of a prompt's token among all by likelihood, from 1; a sampled token's is 0. `offset` is where
    its text begins in the choice's text, in characters; 0 for a prompt that is not part of it.
    """

    id: int
    logprob: float | None
    top: list[tuple[int, float]]
    rank: int = 0
    offset: int = 0


class TextPiece(msgspec.Struct, frozen=True):
    """A part of a choice's text that has become certain, with the tokens since the last piece.

    `finish_reason` comes with the last piece; the prompt's text and ids, `echo` and `prompt_ids`,
    with the first. `tokens` are the sampled tokens and `prompt_tokens` the prompt's. What is of the
    prompt, and tokens and ids, are there only if they are requested.
    """

    index: int
    text: str
    finish_reason: FinishReason | None
    tokens: Sequence[ScoredToken]
    prompt_tokens: Sequence[ScoredToken]
    token_ids: list[int]
    prompt_ids: list[int] | None
    echo: str = ""
