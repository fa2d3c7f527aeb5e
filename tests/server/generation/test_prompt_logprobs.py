"""Scores of prompts are encoded with other requests in between."""

import asyncio

import msgspec
import pytest

from server.generation.prompt_logprobs import encoded_prompt_logprobs, in_turns, prompt_logprobs
from tests.server.scores import WIDTH, Names, scored


@pytest.mark.parametrize("count", [0, 1, 2, 780, 781, 5000])
async def test_a_long_list_is_that_of_its_tokens(count):
    tokens = scored(count)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    encoded = await encoded_prompt_logprobs(tokens, WIDTH, Names())
    other.cancel()
    assert turns >= count * (WIDTH + 1) >> 14
    first, *entries = msgspec.json.decode(encoded)
    assert first is None
    assert len(entries) == max(0, count - 1)
    for token, entry in zip(tokens[1:], entries, strict=True):
        assert entry[str(token.id)]["decoded_token"] == f"<{token.id}>"
        likeliest = {str(other) for other, _ in token.top}
        assert set(entry) == likeliest | {str(token.id)}
    assert msgspec.json.encode(prompt_logprobs(tokens, WIDTH, Names())) == encoded


async def test_at_most_a_turns_numbers_are_taken_at_once():
    parts = [some async for some in in_turns(scored(5000), WIDTH)]
    assert max(map(len, parts)) * (WIDTH + 1) <= 1 << 14
    assert [token for some in parts for token in some] == scored(5000)
