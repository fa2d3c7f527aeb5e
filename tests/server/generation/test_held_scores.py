"""What an answer's log-probabilities hold as they come, and how many they may be."""

import asyncio

import pytest

from engine_core.messages import SamplingParams
from engine_core.refusal import RefusalError
from server.generation.plan import GenerationPlan
from server.generation.scores import HeldScores
from server.service.inputs import text_items
from server.service.ledger import REQUEST_BYTES, Ledger

MOST = 1 << 22


def plan(logprobs: int | None, prompt_logprobs: int | None = None, n: int = 1) -> GenerationPlan:
    return GenerationPlan(
        prompts=text_items("a", "prompt"),
        n=n,
        width=n,
        params=SamplingParams(logprobs=logprobs, prompt_logprobs=prompt_logprobs),
        stops=(),
        logprobs=logprobs,
        echo=False,
    )


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


async def test_sixteen_of_the_largest_leave_as_many_as_there_is_room_for() -> None:
    """They grow together; all are answered or refused, and nothing is held afterwards."""
    bound = MOST * 8 * 22 // 21 * 4
    ledger = Ledger(bound)
    peak = 0

    async def answer() -> str:
        nonlocal peak
        try:
            with ledger.account(0, "log-probabilities") as account:
                scores = HeldScores(plan(20), account)
                scores.streamed = False
                for _ in range(100):
                    scores.add(MOST // 21 // 100, 0)
                    peak = max(peak, ledger.num_bytes)
                    await asyncio.sleep(0)
        except RefusalError as refusal:
            return refusal.code
        return "answered"

    ends = await asyncio.gather(*(answer() for _ in range(16)))
    assert ends.count("answered") >= 3
    assert ends.count("overloaded") == 16 - ends.count("answered")
    assert peak <= bound
    assert ledger.num_bytes == 0
