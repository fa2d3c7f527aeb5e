"""Many log-probabilities are encoded with other requests in between, and read as few do."""

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
import pytest

from server.api.chat import ChatForm
from server.api.completions import CompletionForm
from server.generation import scores
from server.generation.choice import TextPiece
from server.generation.scores import ScoredToken, prompt_logprobs
from server.schemas.chat import ChatMessage, ChatRequest
from server.schemas.completions import CompletionRequest
from tests.server.scores import WIDTH, Names, scored

AnswerT = TypeVar("AnswerT")
MODEL = cast(
    "Any",
    SimpleNamespace(token_text=Names(), token_bytes=[b"a"] * 9000, name="m", fingerprint="f"),
)
AT_ONCE = (1 << 14) // (WIDTH + 1)


def piece(prompt: int, sampled: int) -> TextPiece:
    """Of a prompt with so many tokens, and so many sampled ones."""
    own = scored(sampled + 1)[1:]
    return TextPiece(3, "text", "stop", own, scored(prompt), [1], [*range(prompt)], "prompt")


async def turns_beside(work: Awaitable[AnswerT]) -> tuple[AnswerT, int]:
    """What `work` comes to, and how often another task ran meanwhile."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await asyncio.sleep(0)
    turns = 0
    answer = await work
    other.cancel()
    return answer, turns


@pytest.mark.parametrize("prompt", [0, 1, 400, 2000])
@pytest.mark.parametrize("sampled", [0, 1, 400, 2000])
@pytest.mark.parametrize("echo", [False, True])
async def test_a_long_choice_of_completions_is_what_it_would_be_short(
    prompt: int, sampled: int, echo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = CompletionRequest(
        model="m", prompt="x", logprobs=WIDTH, prompt_logprobs=WIDTH, echo=echo
    )
    long, turns = await turns_beside(
        CompletionForm(body, MODEL, "a").choice(piece(prompt, sampled))
    )
    parts = [prompt, prompt * echo + sampled]
    assert (turns > 0) == any(tokens > AT_ONCE for tokens in parts)
    monkeypatch.setattr(scores, "_NUMBERS_AT_ONCE", 1 << 30)
    short, turns = await turns_beside(
        CompletionForm(body, MODEL, "a").choice(piece(prompt, sampled))
    )
    assert turns == 0
    assert msgspec.json.encode(long) == msgspec.json.encode(short)


@pytest.mark.parametrize("sampled", [0, 1, 2000])
async def test_a_long_choice_of_chat_is_what_it_would_be_short(
    sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = ChatRequest(model="m", messages=[ChatMessage(role="user", content="x")])
    long, turns = await turns_beside(ChatForm(body, MODEL, "a", WIDTH).choice(piece(0, sampled)))
    assert (turns > 0) == (sampled > AT_ONCE)
    monkeypatch.setattr(scores, "_NUMBERS_AT_ONCE", 1 << 30)
    short = await ChatForm(body, MODEL, "a", WIDTH).choice(piece(0, sampled))
    assert msgspec.json.encode(long) == msgspec.json.encode(short)


@pytest.mark.parametrize("count", [0, 1, 2, AT_ONCE, AT_ONCE + 1, 2000])
async def test_scores_of_a_prompt_are_those_of_its_tokens(count: int) -> None:
    tokens = scored(count)
    made, turns = await turns_beside(prompt_logprobs(tokens, WIDTH, Names()))
    assert turns >= (count > AT_ONCE) * count // AT_ONCE
    first, *entries = msgspec.json.decode(msgspec.json.encode(made))
    assert first is None
    assert len(entries) == max(0, count - 1)
    for token, entry in zip(tokens[1:], entries, strict=True):
        assert entry[str(token.id)]["decoded_token"] == f"<{token.id}>"
        likeliest = {str(other) for other, _ in token.top}
        assert set(entry) == likeliest | {str(token.id)}


async def test_so_many_numbers_at_most_are_taken_at_once() -> None:
    taken: list[int] = []

    def columns(some: Any) -> list[list[ScoredToken]]:
        taken.append(len(some))
        return [[token.id for token in some]]

    made = await scores.score_columns([scored(2000), scored(700)], WIDTH, columns)
    assert max(taken) <= AT_ONCE
    (ids,) = msgspec.json.decode(msgspec.json.encode(made))
    assert ids == [token.id for tokens in (scored(2000), scored(700)) for token in tokens]
