"""Log-probabilities: the engine's arrays, how many are held, and long answers in small turns."""

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.messages import SamplingParams
from engine_core.refusal import RefusalError
from server.api.chat import ChatForm
from server.api.completions import CompletionForm
from server.generation import scores
from server.generation.choice import TextPiece
from server.generation.plan import GenerationPlan
from server.generation.scores import LOWEST, HeldScores, ScoredToken, ScoredTokens, prompt_logprobs
from server.schemas.chat import ChatMessage, ChatRequest
from server.schemas.completions import CompletionRequest
from server.service.inputs import text_items
from server.service.ledger import REQUEST_BYTES, Ledger
from workers.contract.messages import Logprobs

WIDTH = 20
NAMES: Any = [f"<{token}>" for token in range(9000)]
"""No tokenizer is needed."""


def scored(count: int) -> list[ScoredToken]:
    """So many, with WIDTH alternatives each; the first has none."""
    likeliest = [(other, -0.5 - other) for other in range(WIDTH)]
    first = ScoredToken(7, None, [])
    others = [ScoredToken(7 + i, -1.5, likeliest, 3, 4 * i) for i in range(1, count)]
    return [first, *others][:count]


MODEL: Any = SimpleNamespace(token_text=NAMES, token_bytes=[b"a"] * 9000, name="m", fingerprint="f")
AT_ONCE = (1 << 14) // (WIDTH + 1)


def piece(prompt: int, sampled: int) -> TextPiece:
    """Of a prompt with so many tokens, and so many sampled ones."""
    own = scored(sampled + 1)[1:]
    return TextPiece(3, "text", "stop", own, scored(prompt), [1], [*range(prompt)], "prompt")


async def turns_beside(work: Awaitable[Any]) -> tuple[Any, int]:
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


def form(kind: str) -> CompletionForm | ChatForm:
    if kind == "chat":
        chat = ChatRequest(model="m", messages=[ChatMessage(role="user", content="x")])
        return ChatForm(chat, MODEL, "a", plan(WIDTH))
    body = CompletionRequest(
        model="m", prompt="x", logprobs=WIDTH, prompt_logprobs=WIDTH, echo=kind == "echo"
    )
    return CompletionForm(body, MODEL, "a")


@pytest.mark.parametrize("prompt", [0, 1, 400, 2000])
@pytest.mark.parametrize("sampled", [0, 1, 400, 2000])
@pytest.mark.parametrize("kind", ["completion", "echo", "chat"])
async def test_a_long_choice_is_what_it_would_be_short(
    prompt: int, sampled: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, turns = await turns_beside(form(kind).choice(piece(prompt, sampled)))
    parts = {"completion": [prompt, sampled], "echo": [prompt, prompt + sampled]}
    assert (turns > 0) == any(tokens > AT_ONCE for tokens in parts.get(kind, [sampled]))
    monkeypatch.setattr(scores, "_NUMBERS_AT_ONCE", 1 << 30)
    short, turns = await turns_beside(form(kind).choice(piece(prompt, sampled)))
    assert turns == 0
    assert msgspec.json.encode(long) == msgspec.json.encode(short)


@pytest.mark.parametrize("count", [0, 1, 2, AT_ONCE, AT_ONCE + 1, 2000])
async def test_scores_of_a_prompt_are_those_of_its_tokens(count: int) -> None:
    tokens = scored(count)
    made, turns = await turns_beside(prompt_logprobs(tokens, WIDTH, NAMES))
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


STEPS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=4)


def of_step(count: int, width: int, begin: int) -> Logprobs:
    """The scores of `count` tokens, each number another one."""
    numbers = np.arange(begin, begin + count, dtype=np.int32)
    table = numbers[:, None] * 10 + np.arange(width, dtype=np.int32)
    chosen, chances = (-each.astype(np.float32) for each in (numbers, table))
    arrays = (chosen, table, chances, numbers + 100)
    return Logprobs(width, *(array.tobytes() for array in arrays))


def token_of(number: int, width: int, offset: int, rank: int = 0) -> ScoredToken:
    """What `of_step` says of one token."""
    top = [(10 * number + other, -10.0 * number - other) for other in range(width)]
    return ScoredToken(50 + number, -float(number), top, rank, offset)


@given(
    STEPS, st.integers(0, 3), st.integers(0, 4), st.booleans(), st.booleans(),
    st.integers(-20, 20), st.integers(-20, 20),
)  # fmt: skip
def test_a_part_of_it_is_that_of_its_tokens(
    steps, width, vocabulary, is_prompt, placed, begin, end
):
    """Also where other requests of a step ask for more, or the vocabulary has less."""
    tokens = ScoredTokens(width, 50 if is_prompt else None)
    expected = [ScoredToken(50, None, [])] * is_prompt
    for count, step_width in steps:
        numbers = range(len(tokens), len(tokens) + count)
        offsets = [3 * number * placed for number in numbers]
        scores = of_step(count, min(vocabulary, max(width, step_width)), numbers[0])
        scores = scores if is_prompt else msgspec.structs.replace(scores, ranks=b"")
        tokens.add([50 + number for number in numbers], scores, offsets if placed else ())
        expected += [
            token_of(number, min(width, vocabulary), offset, (100 + number) * is_prompt)
            for number, offset in zip(numbers, offsets, strict=True)
        ]
    assert len(tokens) == len(expected)
    assert tokens[begin:end] == expected[begin:end]
    assert [*tokens] == expected
    assert not expected or tokens[-1] == expected[-1]
    with pytest.raises(IndexError):
        tokens[len(expected)]


def test_a_token_of_probability_0_has_the_lowest_number():
    never = np.array([-np.inf], np.float32).tobytes()
    tokens = ScoredTokens(1)
    tokens.add([7], Logprobs(1, never, np.array([9], np.int32).tobytes(), never))
    assert [*tokens] == [ScoredToken(7, LOWEST, [(9, LOWEST)])]


MOST = 1 << 22


def plan(
    logprobs: int | None, prompt_logprobs: int | None = None, n: int = 1, echoed: str = ""
) -> GenerationPlan:
    params = SamplingParams(logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    own = {"prompts": text_items(echoed or "a", "prompt"), "echo": bool(echoed)}
    return GenerationPlan(n=n, width=n, params=params, stops=(), logprobs=logprobs, **own)


async def test_generated_ones_are_counted_as_they_come_and_refused_beyond_the_bound() -> None:
    ledger = Ledger(MOST)
    with ledger.account(0, "log-probabilities") as account:
        scores = HeldScores(plan(20), account)
        scores.streamed = False
        for tokens in (1, 2):
            scores.add(1, 0)
            # 21 ids and numbers, and the token's own.
            assert ledger.num_bytes == REQUEST_BYTES + 8 * 22 * tokens
        scores.add(MOST // 21 - 2, 0)
        with pytest.raises(RefusalError, match="so far; at most 4194304") as refusal:
            scores.add(1, 0)
    assert (refusal.value.code, refusal.value.param) == ("too_large", "logprobs")
    assert ledger.num_bytes == 0


async def test_of_a_stream_only_those_of_its_prompts_are_held() -> None:
    ledger = Ledger(MOST)
    with ledger.account(0, "log-probabilities") as account:
        scores = HeldScores(plan(20, prompt_logprobs=4), account)
        scores.add(MOST, 0)
        assert ledger.num_bytes == REQUEST_BYTES
        scores.add(0, 100)
        assert ledger.num_bytes == REQUEST_BYTES + 8 * 6 * 100


async def test_an_answer_is_large_by_what_its_choices_repeat() -> None:
    with Ledger(MOST).account(0, "log-probabilities") as account:
        for n, many in ((1, False), (128, True)):
            scores = HeldScores(plan(None, prompt_logprobs=20, n=n), account)
            scores.streamed = False
            scores.add(1_000_000, 500)
            assert scores.are_many == many
