"""What a step takes of prompts: a common time, from what waits and from whole prompts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.schedulers.cost_model import Coefficients, CostModel
from engine_core.schedulers.prompt_budget import PromptBudget, StepTime
from tests.engine_core.configs import execution_config

COSTS = Coefficients(step=1e-3, token=1e-5, attended=4e-10, context=1e-8)


def step_time(stages: int = 2, max_step_tokens: int = 8192, device: str = "cpu") -> StepTime:
    devices = (device,) * stages
    config = execution_config(devices=devices, max_step_tokens=max_step_tokens)
    return StepTime(config, CostModel(COSTS))


@pytest.mark.parametrize(
    ("tokens", "times", "chunks"),
    [
        (1000, step_time(stages=1), [(0, 300, 300), (500, 5000, 700)]),
        (8192, step_time(), [(0, 400, 400), (0, 1000, 0), (0, 100, 100)]),
        (100, step_time(max_step_tokens=256), [(0, 5000, 100), (0, 10, 0)]),
    ],
    ids=["all that fit a single stage", "no short cut of a second prompt", "the hard limit"],
)
def test_a_step_takes_of_one_prompt_after_another(tokens, times, chunks) -> None:
    budget = PromptBudget(tokens, 0, times)
    for start, stop, length in chunks:
        assert budget.chunk(start, stop) == length
        budget.take(start, length)


def test_a_prompt_is_cut_by_its_whole_length_and_not_by_what_is_left() -> None:
    """Whatever else waits: its first chunk, one in the middle and the one before the last."""
    times = step_time()
    lengths = [
        PromptBudget(8192, 9000, times).chunk(start, 30_000) for start in (0, 12_000, 24_000)
    ]
    seconds = [
        times.cost_model.chunk_seconds(start, length)
        for start, length in zip((0, 12_000, 24_000), lengths, strict=True)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert seconds == pytest.approx([times.cost_model.chunk_seconds(0, 30_000) / 24] * 3, rel=0.01)


def test_steps_of_a_gpu_fill_the_tiles_of_its_products() -> None:
    """Decode rows and earlier chunks of the step included; what is left over is a step as it is."""
    times = step_time(device="cuda:0")
    lengths = [PromptBudget(8192, 0, times).chunk(start, 64_000) for start in (0, 30_000)]
    assert lengths == [3840, 1792]
    beside_rows = PromptBudget(8092, 0, times, others=100)
    assert beside_rows.chunk(0, 64_000) == 3740
    beside_rows.take(0, 400)
    assert (500 + beside_rows.chunk(0, 64_000)) % 256 == 0
    assert PromptBudget(8192, 0, times).chunk(62_500, 64_000) == 1500


@pytest.mark.parametrize(("others", "filled"), [(0, 768), (100, 768), (200, 1024), (700, 1536)])
def test_a_short_step_fills_tiles_too(others: int, filled: int) -> None:
    """8 ms more are about 800 tokens: the full tiles that are next to that."""
    times = step_time(stages=1, device="cuda:0")
    budget = PromptBudget(8192, 20_000, times, others)
    budget.within(8e-3, each=0)
    assert budget.chunk(0, 100) == 100
    budget.take(0, 100)
    left = budget.chunk(0, 5000, limited=True)
    budget.take(0, left, limited=True)
    assert others + 100 + left == filled
    # Some go on even where no time is left, and no more than these.
    late = PromptBudget(8192, 20_000, times, 256)
    late.within(-1e-3, each=0)
    assert late.chunk(0, 5000, limited=True) == 32
    late.take(0, 32, limited=True)
    assert late.chunk(0, 5000, limited=True) == 0
    assert late.chunk(0, 5000) == 5000, "what is not limited"


def test_limited_prompts_of_all_kinds_have_a_few_tokens_together() -> None:
    """Where no time is left. Of those that give way only some begin with a token in any case."""
    budget = PromptBudget(8192, 20_000, step_time(stages=1))
    budget.within(-1e-3, each=1)
    assert budget.chunk(0, 20, limited=True) == 20
    budget.take(0, 20, limited=True)
    budget.within(-1e-3, each=1)
    assert budget.chunk(700, 5000, limited=True) == 12
    budget.take(700, 12, limited=True)
    assert budget.chunk(0, 5000, limited=True) == 1
    assert budget.chunk(700, 5000, limited=True) == 0, "it has begun"
    budget.within(-1e-3, each=0)
    assert budget.chunk(0, 5000, limited=True) == 0


def test_the_last_tokens_join_the_chunk_before_them() -> None:
    times = step_time()
    length = PromptBudget(8192, 0, times).chunk(0, 3000)
    assert PromptBudget(8192, 0, times).chunk(2990 - length, 3000) == length + 10


@given(
    prompts=st.lists(st.integers(1, 20_000), min_size=1, max_size=8),
    cached=st.lists(st.floats(0, 1), min_size=8, max_size=8),
    tokens=st.integers(1, 8192),
    stages=st.integers(2, 16),
    device=st.sampled_from(["cpu", "cuda:0"]),
)
def test_a_cached_beginning_leaves_a_chunk_to_compute(
    prompts: list[int], cached: list[float], tokens: int, stages: int, device: str
) -> None:
    """The scheduler asks before it looks for a prompt's prefix, and counts on it afterwards."""
    budget, taken = PromptBudget(tokens, sum(prompts), step_time(stages, device=device)), 0
    for prompt, share in zip(prompts, cached, strict=False):
        if not budget.chunk(0, prompt):
            break
        start = int(share * (prompt - 1))
        length = budget.chunk(start, prompt)
        assert 1 <= length <= prompt - start
        budget.take(start, length)
        taken += length
    assert 1 <= taken <= tokens
