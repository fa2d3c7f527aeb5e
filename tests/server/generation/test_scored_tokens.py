"""Scores are taken from the engine's arrays as they would be token by token."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.generation.scored_tokens import SampledTokens, ScoredPrompt, scored_tokens
from workers.contract.messages import Logprobs

STEPS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=4)


def of_step(count: int, width: int, begin: int) -> Logprobs:
    """The scores of `count` tokens, each number another one."""
    numbers = np.arange(begin, begin + count, dtype=np.int32)
    table = (numbers[:, None] * 10 + np.arange(width, dtype=np.int32)).astype(np.int32)
    return Logprobs(
        width,
        (-numbers.astype(np.float32)).tobytes(),
        table.tobytes(),
        (-table.astype(np.float32)).tobytes(),
        (numbers + 100).tobytes(),
    )


@given(STEPS, st.integers(0, 3), st.booleans(), st.integers(-20, 20), st.integers(-20, 20))
def test_a_part_of_it_is_that_of_its_tokens(steps, width, placed, begin, end):
    total = 1 + sum(count for count, _ in steps)
    ids, offsets = [*range(50, 50 + total)], [*range(0, 3 * total, 3)]
    prompt = ScoredPrompt(ids, width, (lambda: offsets) if placed else None)
    expected = [*prompt]
    assert [(token.id, token.logprob) for token in expected] == [(50, None)]
    for count, step_width in steps:
        at = len(prompt)
        scores = of_step(count, max(width, step_width), at)
        prompt.add(scores)
        places = offsets[at : at + count] if placed else None
        expected += scored_tokens(ids[at : at + count], scores, width, places)
    assert len(prompt) == total == len(expected)
    assert prompt[begin:end] == expected[begin:end]
    assert [*prompt] == expected
    assert prompt[-1] == expected[-1]
    with pytest.raises(IndexError):
        prompt[total]


@given(
    st.integers(0, 5), st.integers(0, 3), st.integers(0, 3), st.integers(-7, 7), st.integers(-7, 7)
)
def test_a_part_of_what_is_sampled_is_that_of_its_tokens(count, width, step_width, begin, end):
    sampled, expected = SampledTokens(width), []
    for number in range(count):
        scores = msgspec.structs.replace(of_step(1, step_width, number), ranks=b"")
        sampled.add(50 + number, scores, 3 * number)
        expected += scored_tokens([50 + number], scores, width, [3 * number])
    assert len(sampled) == count
    assert [*sampled] == expected
    assert sampled[begin:end] == expected[begin:end]
    if count:
        assert sampled[-1] == expected[-1]
    with pytest.raises(IndexError):
        sampled[count]


def test_an_empty_prompt_has_no_tokens():
    assert [*ScoredPrompt([], 3)] == []
