"""Windows, softcaps, scales and position biases, on the CPU, against the definition."""

from typing import Any

import pytest
import torch

from tests.workers.attention.reference import dense_attention, solution
from tests.workers.attention_problems import Problem, attention_needs
from tests.workers.step_tensors import packed_step
from workers.attention.backend_selection import select_backend
from workers.attention.base import QKV, AttentionNeeds

WINDOW = 6
KINDS: dict[str, dict[str, Any]] = {
    "window": {"window": WINDOW},
    "window_of_one": {"window": 1},
    "softcap": {"softcap": 2.0},
    "scale": {"scale": 0.4},
    "all": {"window": WINDOW, "softcap": 3.0, "scale": 0.4},
}
STEPS = {
    "prompts_at_the_edge": [(0, WINDOW - 1), (0, WINDOW), (0, WINDOW + 1), (0, 1), (0, 20)],
    "decodes_at_the_edge": [(WINDOW - 2, 1), (WINDOW - 1, 1), (WINDOW, 1), (40, 1)],
    "chunks": [(WINDOW - 1, 3), (4, WINDOW), (30, 9), (1, 2)],
    "mixed": [(0, 5), (7, 1), (3, 16), (20, 1), (0, 1), (14, 4), (33, 1)],
}
"""Rows of a step: (cached tokens, queries)"""
LENGTHS = [[1], [WINDOW - 1, WINDOW, WINDOW + 1], [30, 2, 29, 1, 3 * WINDOW]]
BACKENDS = ["naive", "sdpa"]


def random_qkv(lengths: list[int], want: AttentionNeeds) -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(0)
    heads = [want.num_heads, want.num_kv_heads, want.num_kv_heads]
    drawn = torch.randn(sum(lengths), sum(heads), want.head_dim, generator=numbers)
    return list(drawn.split(heads, dim=1))


def random_bias(want: AttentionNeeds, longest: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(1)
    return 2 * torch.randn(want.num_heads, 2 * longest - 1, generator=numbers)


@pytest.mark.parametrize("rows", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", BACKENDS)
def test_causal(name: str, kind: dict[str, Any], rows: list[tuple[int, int]]) -> None:
    want = attention_needs(num_kv_heads=2, **kind)
    problem = Problem(rows, want)
    answer = problem.solve(select_backend(name, want))
    torch.testing.assert_close(answer.double(), solution(problem), atol=3e-6, rtol=0)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", BACKENDS)
def test_bidirectional(name: str, kind: dict[str, Any], lengths: list[int], biased: bool) -> None:
    want = attention_needs(paged=False, num_kv_heads=2, **kind)
    bias = random_bias(want, 40) if biased else None
    parts = random_qkv(lengths, want)
    backend = select_backend(name, want)
    step = packed_step([[0] * length for length in lengths])
    answer = backend.attend_packed(QKV(*parts), backend.plan_packed(step, bias))
    rows = zip(*(part.split(lengths) for part in parts), strict=True)
    expected = torch.cat([dense_attention(q, k, v, want.kind, bias) for q, k, v in rows])
    torch.testing.assert_close(answer.double(), expected, atol=3e-6, rtol=0)


@pytest.mark.parametrize("wrong", [WINDOW - 1, WINDOW + 1])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_window_off_by_one_is_noticed(name: str, wrong: int) -> None:
    right, other = (attention_needs(window=window) for window in (WINDOW, wrong))
    backend = select_backend(name, other)
    for rows in ([(0, WINDOW + 1)], [(WINDOW, 1)], [(WINDOW, 2)]):
        problem = Problem(rows, right)
        assert (problem.solve(backend).double() - solution(problem)).abs().max() > 1e-3
