"""Scores of prompts are encoded with other requests in between, and once for all choices."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from server.api.completion_choices import CompletionFormat
from server.generation.prompt_logprobs import in_turns, prompt_logprobs
from server.generation.text_piece import ScoredToken, TextPiece
from server.schemas.completions import CompletionRequest
from server.service.token_text import TokenText

WIDTH = 20


class Names(TokenText):
    def __init__(self) -> None:
        """No tokenizer is needed."""

    def __getitem__(self, token: int) -> str:
        return f"<{token}>"


class Writer:
    token_text = Names()


def scored(count: int) -> list[ScoredToken]:
    likeliest = [(other, -0.5 - other) for other in range(WIDTH)]
    first = ScoredToken(7, None, [])
    return [first] + [ScoredToken(7 + i, -1.5, likeliest, 3, 4 * i) for i in range(1, count)]


async def turns_of_others(work) -> tuple[Any, int]:
    """What `work` returns, and how often another task ran meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    result = await work
    other.cancel()
    return result, turns


@pytest.mark.parametrize("count", [1, 2, 780, 781, 5000])
async def test_a_long_list_is_that_of_its_tokens(count):
    tokens = scored(count)
    encoded, turns = await turns_of_others(prompt_logprobs(tokens, WIDTH, Names()))
    first, *entries = msgspec.json.decode(bytes(encoded))
    assert first is None
    assert len(entries) == count - 1
    for token, entry in zip(tokens[1:], entries, strict=True):
        assert entry[str(token.id)]["decoded_token"] == f"<{token.id}>"
        likeliest = {str(other) for other, _ in token.top}
        assert set(entry) == likeliest | {str(token.id)}
    assert turns >= count * (WIDTH + 1) >> 14


async def test_echoed_choices_have_the_columns_of_prompt_and_text():
    tokens, own = scored(2000), [ScoredToken(3, -0.25, [(3, -0.25)], 0, 9000)]
    body = CompletionRequest(model="m", prompt="x", echo=True, logprobs=WIDTH, prompt_logprobs=0)
    form = CompletionFormat(body, cast("Any", Writer()))
    for index, generated in enumerate([own, []]):
        piece = TextPiece(index, "text", "stop", generated, tokens, [], None)
        _, turns = await turns_of_others(form.encode_scores(piece))
        assert (turns > 2) == (index == 0), "encoded once"
        choice = msgspec.json.decode(msgspec.json.encode(form.choice(piece)))
        both = tokens + generated
        assert choice["logprobs"]["text_offset"] == [token.offset for token in both]
        assert choice["logprobs"]["token_logprobs"] == [token.logprob for token in both]
        assert choice["logprobs"]["tokens"] == [f"<{token.id}>" for token in both]
        top = choice["logprobs"]["top_logprobs"]
        assert [entry and len(entry) for entry in top[:3]] == [None, WIDTH, WIDTH]
        assert len(choice["prompt_logprobs"]) == 2000
    late = form.choice(TextPiece(2, "", "timeout", [], [], [], None))
    assert msgspec.json.decode(msgspec.json.encode(late.prompt_logprobs)) == [None]


async def test_at_most_a_turns_numbers_are_taken_at_once():
    parts = [some async for some in in_turns(scored(5000), WIDTH)]
    assert max(map(len, parts)) * (WIDTH + 1) <= 1 << 14
    assert [token for some in parts for token in some] == scored(5000)
