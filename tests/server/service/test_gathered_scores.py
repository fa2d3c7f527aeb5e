"""Answers that are gathered share a bound on their log-probabilities: the largest ones give way."""

from contextlib import ExitStack

import pytest

from engine_core.refusal import RefusalError
from server.service.gathered_scores import GatheredScores

MOST = 1000
SCORES_BYTES = 64 * MOST


def test_one_alone_may_have_all_of_it() -> None:
    with GatheredScores(SCORES_BYTES).answer() as answer:
        answer.grow_to(MOST)
        with pytest.raises(RefusalError, match=f"logprobs: the answer has {MOST + 1}") as refusal:
            answer.grow_to(MOST + 1)
    assert (refusal.value.code, refusal.value.param) == ("too_large", "logprobs")


def test_the_largest_gives_way_and_only_that() -> None:
    scores = GatheredScores(SCORES_BYTES)
    with scores.answer() as large, scores.answer() as other:
        large.grow_to(600)
        other.grow_to(400)
        other.grow_to(401)
        assert large.refused
        other.grow_to(MOST)
        with pytest.raises(RefusalError):
            large.grow_to(600)
        with pytest.raises(RefusalError):
            other.grow_to(MOST + 1)


def test_what_is_over_does_not_count() -> None:
    scores = GatheredScores(SCORES_BYTES)
    with scores.answer() as first:
        first.grow_to(MOST)
    with scores.answer() as second:
        second.grow_to(MOST)


def test_small_ones_are_not_refused_however_many_they_are() -> None:
    scores = GatheredScores(SCORES_BYTES)
    with ExitStack() as stack:
        answers = [stack.enter_context(scores.answer()) for _ in range(20)]
        for answer in answers:
            answer.grow_to(MOST // 8)
        assert not any(answer.refused for answer in answers)
        with pytest.raises(RefusalError):
            answers[0].grow_to(MOST // 8 + 1)
        assert sum(answer.refused for answer in answers) == 1
