"""Choices of `/v1/completions` in parts: what they repeat of their prompt is there once."""

import asyncio
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.generation.completion.completion_choices import CompletionFormat
from server.generation.completion.completion_parts import CompletionParts
from server.generation.text_piece import ScoredToken, TextPiece
from server.schemas.completions import CompletionRequest
from tests.server.scores import WIDTH, Names, scored


class Writer:
    token_text = Names()


def format_of(**fields: Any) -> CompletionFormat:
    body = CompletionRequest(model="m", prompt="x", **fields)
    return CompletionFormat(body, cast("Any", Writer()))


TOKENS = st.integers(0, 3).map(scored)
PIECES = st.builds(
    TextPiece,
    st.integers(0, 9),
    st.text(),
    st.sampled_from([None, "stop"]),
    TOKENS,
    TOKENS,
    st.lists(st.integers(0, 99), max_size=3),
    st.none() | st.lists(st.integers(0, 99), max_size=3),
    st.text(),
)
WIDTHS = st.none() | st.integers(0, WIDTH)


@given(st.lists(PIECES, max_size=5), WIDTHS, WIDTHS, st.booleans(), st.booleans())
def test_the_parts_together_are_the_choice(pieces, width, prompt_width, echo, ids):
    form = format_of(logprobs=width, prompt_logprobs=prompt_width, echo=echo, return_token_ids=ids)
    parts = CompletionParts(form)

    async def check() -> None:
        for piece in pieces:
            encoded = msgspec.json.encode(form.choice(piece))
            assert b"".join(await parts.of(piece)) == encoded
            assert b"".join(await parts.of(piece)) == encoded

    asyncio.run(check())


@pytest.mark.parametrize("own", [[], [ScoredToken(3, -0.25, [(3, -0.25)], 0, 9000)]])
async def test_choices_of_a_prompt_share_its_scores_ids_and_text(own):
    form = format_of(echo=True, logprobs=WIDTH, prompt_logprobs=WIDTH, return_token_ids=True)
    parts, tokens, ids = CompletionParts(form), scored(2000), [*range(2000)]
    choices = [
        await parts.of(TextPiece(index, "text", "stop", own, tokens, [], ids, "prompt" * 2000))
        for index in range(3)
    ]
    first, *others = choices
    long = [part for part in first if len(part) > 1000]
    assert len(long) == 7, "the text, four columns, the ids, the scores"
    for other in others:
        assert [id(part) for part in other if len(part) > 1000] == list(map(id, long))
        assert sum(len(part) for part in other if len(part) <= 1000) < 1000
