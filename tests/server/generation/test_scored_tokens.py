"""Scores are taken from the engine's arrays as they would be token by token."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.generation.scores import LOWEST, ScoredToken, ScoredTokens
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


def token_of(number: int, width: int, offset: int, rank: int = 0) -> ScoredToken:
    """What `of_step` says of one token."""
    top = [(10 * number + other, -10.0 * number - other) for other in range(width)]
    return ScoredToken(50 + number, -float(number), top, rank, offset)


@given(STEPS, st.integers(0, 3), st.booleans(), st.integers(-20, 20), st.integers(-20, 20))
def test_a_part_of_it_is_that_of_its_tokens(steps, width, placed, begin, end):
    total = 1 + sum(count for count, _ in steps)
    prompt, expected = ScoredTokens(width, 50), [ScoredToken(50, None, [])]
    assert [*prompt] == expected
    for count, step_width in steps:
        numbers = range(len(prompt), len(prompt) + count)
        offsets = [3 * number * placed for number in numbers]
        scores = of_step(count, max(width, step_width), numbers[0])
        prompt.add([50 + number for number in numbers], scores, offsets if placed else ())
        expected += [
            token_of(number, width, offset, 100 + number)
            for number, offset in zip(numbers, offsets, strict=True)
        ]
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
    sampled, expected = ScoredTokens(width), []
    for number in range(count):
        scores = msgspec.structs.replace(of_step(1, step_width, number), ranks=b"")
        sampled.add([50 + number], scores, [3 * number])
        expected.append(token_of(number, min(width, step_width), 3 * number))
    assert len(sampled) == count
    assert [*sampled] == expected
    assert sampled[begin:end] == expected[begin:end]
    if count:
        assert sampled[-1] == expected[-1]
    with pytest.raises(IndexError):
        sampled[count]


def test_a_token_of_probability_0_has_the_lowest_number():
    never = np.array([-np.inf], np.float32).tobytes()
    tokens = ScoredTokens(1)
    tokens.add([7], Logprobs(1, never, np.array([9], np.int32).tobytes(), never))
    assert [*tokens] == [ScoredToken(7, LOWEST, [(9, LOWEST)])]


def test_an_empty_prompt_has_no_tokens():
    assert [*ScoredTokens(3)] == []
