"""A prompt's scores are taken from the engine's arrays as they would be token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.generation.scored_tokens import ScoredPrompt, scored_tokens
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


def test_an_empty_prompt_has_no_tokens():
    assert [*ScoredPrompt([], 3)] == []
