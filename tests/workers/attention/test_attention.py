"""The backends on the CPU against the definition, and what each promises beside."""

import random
from typing import Any

import pytest
import torch

from tests.workers.attention.reference import solution
from tests.workers.attention_problems import Heads, PackedProblem, Problem, attention_needs
from workers.attention.backend_selection import select_backend
from workers.attention.backends.sdpa import padded_batches
from workers.attention.distance_vectors import DistanceVectors
from workers.attention.fp8_numbers import dequantized, quantized
from workers.contract.model_config import DisentangledBias
from workers.device.choices import Choices

BACKENDS = ["naive", "sdpa"]
HEADS = [(4, 4, 64), (4, 1, 80), (6, 2, 96), (4, 2, 128)]
STEPS = {
    "prompt": [(0, 9)],
    "prompt_of_one_token": [(0, 1)],
    "prompt_of_whole_blocks": [(0, 8)],
    "decode": [(6, 1)],
    "decode_at_block_edges": [(3, 1), (4, 1), (7, 1), (8, 1)],
    "decode_of_equal_lengths": [(11, 1), (11, 1)],
    "decode_of_very_unequal_lengths": [(2, 1), (90, 1), (1, 1), (80, 1)],
    "chunk_behind_a_whole_block": [(4, 4)],
    "chunk_across_blocks": [(5, 7)],
    "mixed": [(0, 5), (7, 1), (3, 6), (20, 1), (0, 1), (4, 4), (33, 1)],
}
"""Rows of a step: (cached tokens, queries)"""

WINDOW = 6
KINDS: dict[str, dict[str, Any]] = {
    "window": {"window": WINDOW},
    "window_of_one": {"window": 1},
    "softcap": {"softcap": 2.0},
    "scale": {"scale": 0.4},
    "all": {"window": WINDOW, "softcap": 3.0, "scale": 0.4},
}
CAUSAL_KINDS = KINDS | {
    "sinks": {"sinks": True},
    "sinks_and_window": {"window": WINDOW, "sinks": True},
}
AT_WINDOWS = {
    "prompts": [(0, WINDOW - 1), (0, WINDOW), (0, WINDOW + 1), (0, 1), (0, 20)],
    "decodes": [(WINDOW - 2, 1), (WINDOW - 1, 1), (WINDOW, 1), (40, 1)],
    "chunks": [(WINDOW - 1, 3), (4, WINDOW), (30, 9), (1, 2)],
    "mixed": [(0, 5), (7, 1), (3, 16), (20, 1), (0, 1), (14, 4), (33, 1)],
}
LENGTHS = {
    "one_row": [7],
    "equal": [5, 5, 5],
    "similar": [9, 10, 8, 10],
    "mixed": [1, 30, 2, 29, 8, 64, 1, 31, 7],
}
LENGTHS_AT_WINDOWS = [[1], [WINDOW - 1, WINDOW, WINDOW + 1], [30, 2, 29, 1, 3 * WINDOW]]


def solve(problem: Problem | PackedProblem, name: str) -> torch.Tensor:
    return problem.solve(select_backend(name, problem.want, Choices()))


def check(problem: Problem | PackedProblem, name: str) -> None:
    attended = solve(problem, name)
    assert attended.dtype == problem.want.dtype
    bound = 3e-6 if problem.want.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(attended.double(), solution(problem), atol=bound, rtol=0)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rows", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("name", BACKENDS)
def test_causal(name: str, rows: list[tuple[int, int]], heads: Heads) -> None:
    check(Problem(rows, attention_needs(heads)), name)


@pytest.mark.parametrize("rows", AT_WINDOWS.values(), ids=AT_WINDOWS)
@pytest.mark.parametrize("kind", CAUSAL_KINDS.values(), ids=CAUSAL_KINDS)
@pytest.mark.parametrize("name", BACKENDS)
def test_causal_kinds(name: str, kind: dict[str, Any], rows: list[tuple[int, int]]) -> None:
    check(Problem(rows, attention_needs((4, 2, 32), **kind)), name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", BACKENDS)
def test_causal_in_half_precision(name: str, dtype: torch.dtype) -> None:
    check(Problem(STEPS["mixed"], attention_needs((4, 2, 64), dtype=dtype)), name)


@pytest.mark.parametrize("kind", [{}, *KINDS.values()], ids=["plain", *KINDS])
@pytest.mark.parametrize("rows", [STEPS["prompt"], STEPS["mixed"], *AT_WINDOWS.values()], ids=str)
@pytest.mark.parametrize("name", BACKENDS)
def test_causal_over_an_fp8_cache(
    name: str, rows: list[tuple[int, int]], kind: dict[str, Any]
) -> None:
    """The numbers of these problems are exact in FP8."""
    check(Problem(rows, attention_needs((4, 2, 32), fp8_cache=True, **kind)), name)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_prompt_attends_to_what_later_tokens_will_see(name: str) -> None:
    """To its keys and values as they are in the cache, however it is divided."""
    want = attention_needs((4, 2, 32), fp8_cache=True)
    problem = Problem([(0, 9)], want)
    problem.row_keys[0] += 0.01  # no longer exact in FP8
    whole = problem.solve(select_backend(name, want, Choices()))
    problem.row_keys[0] = dequantized(*quantized(problem.row_keys[0]), torch.float32)
    assert (whole - solution(problem)).abs().max() < 3e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("name", BACKENDS)
def test_bidirectional(name: str, lengths: list[int], dtype: torch.dtype) -> None:
    check(PackedProblem(lengths, attention_needs(paged=False, dtype=dtype)), name)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS_AT_WINDOWS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", BACKENDS)
def test_bidirectional_kinds(
    name: str, kind: dict[str, Any], lengths: list[int], biased: bool
) -> None:
    numbers = torch.Generator().manual_seed(1)
    bias = 2 * torch.randn(4, 79, generator=numbers) if biased else None
    want = attention_needs((4, 2, 32), paged=False, **kind)
    check(PackedProblem(lengths, want, bias=bias), name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", LENGTHS_AT_WINDOWS)
@pytest.mark.parametrize("name", ["naive", "sdpa"])
def test_disentangled(name: str, lengths: list[int], dtype: torch.dtype) -> None:
    numbers = torch.Generator().manual_seed(1)
    keys, queries = torch.randn(2, 4, 10, 32, generator=numbers).to(dtype)
    vectors = DistanceVectors(keys, queries, torch.randint(10, (79,), generator=numbers))
    bias = DisentangledBias(span=5)
    want = attention_needs((4, 4, 32), paged=False, dtype=dtype, position_bias=bias)
    check(PackedProblem(lengths, want, vectors=vectors), name)


@pytest.mark.parametrize("wrong", [WINDOW - 1, WINDOW + 1])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_window_off_by_one_is_noticed(name: str, wrong: int) -> None:
    backend = select_backend(name, attention_needs(window=wrong), Choices())
    for rows in ([(0, WINDOW + 1)], [(WINDOW, 1)], [(WINDOW, 2)]):
        problem = Problem(rows, attention_needs(window=WINDOW))
        assert (problem.solve(backend).double() - solution(problem)).abs().max() > 1e-3


def test_random_steps() -> None:
    draw = random.Random(5)
    for _ in range(40):
        rows = [
            (draw.choice([0, draw.randrange(30)]), draw.choice([1, 1, draw.randrange(1, 14)]))
            for _ in range(draw.randrange(1, 9))
        ]
        check(Problem(rows, attention_needs(draw.choice(HEADS))), "sdpa")


def test_naive_is_bitwise_independent_of_the_step() -> None:
    """A row of 30 tokens: at once among others, in two chunks, and one token at a time."""
    want = attention_needs((4, 2, 80))
    whole = Problem([(0, 30)], want)
    expected = solve(whole, "naive")
    crowd = Problem([(0, 30), (0, 5), (9, 1)], want)
    crowd.queries[:30], crowd.row_keys[0], crowd.row_values[0] = (
        whole.queries,
        whole.row_keys[0],
        whole.row_values[0],
    )
    assert torch.equal(solve(crowd, "naive")[:30], expected)
    for start, stop in [(0, 13), (13, 30), *((place, place + 1) for place in range(30))]:
        part = Problem([(start, stop - start)], want)
        part.queries = whole.queries[start:stop]
        part.row_keys, part.row_values = [whole.row_keys[0][:stop]], [whole.row_values[0][:stop]]
        assert torch.equal(solve(part, "naive"), expected[start:stop])


@pytest.mark.parametrize("name", BACKENDS)
def test_a_row_that_is_not_finite_spoils_no_other(name: str) -> None:
    problem = PackedProblem([6, 8, 7], attention_needs(paged=False))
    clean = solve(problem, name)
    problem.packed[6:14] = torch.nan
    spoilt = solve(problem, name)
    assert torch.equal(spoilt[:6], clean[:6])
    assert torch.equal(spoilt[14:], clean[14:])
    assert spoilt[6:14].isnan().all()


def test_batches_hold_every_row_once_and_little_padding() -> None:
    draw = random.Random(2)
    for _ in range(50):
        lengths = torch.tensor([draw.randrange(1, 200) for _ in range(draw.randrange(1, 40))])
        batches = padded_batches(lengths.int().numpy(), 0.25)
        assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
        for batch in batches:
            assert batch == sorted(batch)
            own = lengths[batch]
            assert own.sum() >= 0.75 * own.max() * len(batch)
    assert padded_batches(torch.tensor([8, 2, 8, 4]).int().numpy(), 0.25) == [[0, 2, 3], [1]]
