"""The attention backends: naive against the definition, every other one against naive."""

import random

import pytest
import torch

from tests.workers.attention_problems import Problem, attention_needs
from tests.workers.step_tensors import packed_step
from workers.attention.backend_selection import select_backend
from workers.attention.backends.sdpa import padded_batches
from workers.attention.base import QKV, AttentionNeeds
from workers.step.packed_step import PackedStep

HEADS = [(4, 4, 64), (4, 1, 80), (6, 2, 96), (4, 2, 128)]
"""(query heads, KV heads, head size)"""

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


def needs(
    heads: tuple[int, int, int], *, paged: bool, dtype: torch.dtype = torch.float32
) -> AttentionNeeds:
    num_heads, num_kv_heads, head_dim = heads
    return attention_needs(
        paged=paged,
        dtype=dtype,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )


def solve(problem: Problem, name: str) -> torch.Tensor:
    return problem.solve(select_backend(name, problem.want))


def by_definition(problem: Problem) -> torch.Tensor:
    """softmax(Q K^T / sqrt(D)) V with a causal mask, in float64, row by row."""
    want, outputs, start = problem.want, [], 0
    group = want.num_heads // want.num_kv_heads
    for (cached, queries), keys, values in zip(
        problem.rows, problem.row_keys, problem.row_values, strict=True
    ):
        own = problem.queries[start : start + queries].double()
        start += queries
        wide_keys, wide_values = (
            own_kv.double().repeat_interleave(group, dim=1) for own_kv in (keys, values)
        )
        scores = torch.einsum("qhd,khd->hqk", own, wide_keys) / want.head_dim**0.5
        later = torch.arange(cached + queries) > cached + torch.arange(queries)[:, None]
        weights = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, wide_values))
    return torch.cat(outputs)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rows", STEPS.values(), ids=STEPS)
def test_paged_causal(heads: tuple[int, int, int], rows: list[tuple[int, int]]) -> None:
    problem = Problem(rows, needs(heads, paged=True))
    naive = solve(problem, "naive")
    torch.testing.assert_close(naive.double(), by_definition(problem), atol=2e-6, rtol=0)
    torch.testing.assert_close(solve(problem, "sdpa"), naive, atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_paged_causal_in_half_precision(dtype: torch.dtype) -> None:
    problem = Problem(STEPS["mixed"], needs((4, 2, 64), paged=True, dtype=dtype))
    naive, sdpa = solve(problem, "naive"), solve(problem, "sdpa")
    assert naive.dtype == sdpa.dtype == dtype
    torch.testing.assert_close(sdpa.float(), naive.float(), atol=2e-2, rtol=0)


def test_random_steps() -> None:
    draw = random.Random(5)
    for _ in range(40):
        rows = [
            (draw.choice([0, draw.randrange(30)]), draw.choice([1, 1, draw.randrange(1, 14)]))
            for _ in range(draw.randrange(1, 9))
        ]
        problem = Problem(rows, needs(draw.choice(HEADS), paged=True))
        torch.testing.assert_close(
            solve(problem, "sdpa"), solve(problem, "naive"), atol=2e-6, rtol=0, msg=str(rows)
        )


def test_naive_is_bitwise_independent_of_the_step() -> None:
    """A row of 30 tokens: at once among others, in two chunks, and one token at a time."""
    want = needs((4, 2, 80), paged=True)
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


LENGTHS = {
    "one_row": [7],
    "equal": [5, 5, 5],
    "similar": [9, 10, 8, 10],
    "mixed": [1, 30, 2, 29, 8, 64, 1, 31, 7],
}


def bidirectional(
    name: str, step: PackedStep, want: AttentionNeeds, qkv: torch.Tensor
) -> torch.Tensor:
    """A backend's answer for queries, keys and values packed as [T, 3, H, D]."""
    backend = select_backend(name, want)
    return backend.attend_packed(QKV(*qkv.unbind(1)), backend.plan_packed(step))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_bidirectional(lengths: list[int], dtype: torch.dtype) -> None:
    want = needs((4, 4, 32), paged=False, dtype=dtype)
    step = packed_step([[0] * length for length in lengths])
    numbers = torch.Generator().manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 4, 32, generator=numbers).to(dtype)
    naive, sdpa = (bidirectional(name, step, want, qkv) for name in ("naive", "sdpa"))
    bound = 2e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(sdpa.float(), naive.float(), atol=bound, rtol=0)
    start = 0
    for length in lengths:
        queries, keys, values = qkv[start : start + length].double().permute(1, 2, 0, 3)
        weights = (queries @ keys.transpose(1, 2) / 32**0.5).softmax(dim=-1)
        own = naive[start : start + length].double().transpose(0, 1)
        torch.testing.assert_close(own, weights @ values, atol=bound, rtol=0)
        start += length


@pytest.mark.parametrize("name", ["sdpa", "naive"])
def test_a_row_that_is_not_finite_spoils_no_other(name: str) -> None:
    lengths = [6, 8, 7]
    want = needs((4, 4, 32), paged=False)
    step = packed_step([[0] * length for length in lengths])
    qkv = torch.randn(sum(lengths), 3, 4, 32, generator=torch.Generator().manual_seed(0))
    clean = bidirectional(name, step, want, qkv)
    qkv[6:14] = torch.nan
    spoilt = bidirectional(name, step, want, qkv)
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
