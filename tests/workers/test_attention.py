"""The attention backends: naive against the definition, every other one against naive."""

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import workers
from tests.workers.tensors import PagedRow, encoder_step, paged_step
from workers.attention.base import AttentionNeeds, LayerCache
from workers.attention.batches import padded_batches
from workers.attention.registry import AttentionBackendError, select_backend
from workers.step_tensors import StepTensors

BLOCK = 4
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


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def needs(
    heads: tuple[int, int, int], *, paged: bool, dtype: torch.dtype = torch.float32
) -> AttentionNeeds:
    return AttentionNeeds(
        paged=paged,
        device="cpu",
        dtype=dtype,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=heads[2],
        block_size=BLOCK,
    )


class Problem:
    """Random queries, keys and values for every context of a step, and a cache that holds them.

    What belongs to no row, in the cache, is NaN: reading it would show.
    """

    def __init__(self, rows: Sequence[tuple[int, int]], want: AttentionNeeds) -> None:
        random_numbers = torch.Generator().manual_seed(len(rows))
        self.want = want
        total = sum(queries for _, queries in rows)
        shapes = [
            (total, want.num_heads, want.head_dim),
            *[(start + queries, want.num_kv_heads, want.head_dim) for start, queries in rows] * 2,
        ]
        drawn = [torch.randn(shape, generator=random_numbers).to(want.dtype) for shape in shapes]
        self.queries, self.contexts = drawn[0], drawn[1:]
        self.rows = rows
        self.tables = _random_tables([start + queries for start, queries in rows])
        self.step = paged_step(
            [
                PagedRow([0] * queries, start, table)
                for (start, queries), table in zip(rows, self.tables, strict=True)
            ],
            BLOCK,
        )
        self.row_keys, self.row_values = drawn[1 : len(rows) + 1], drawn[len(rows) + 1 :]

    def solve(self, name: str) -> torch.Tensor:
        """The answer of a backend, [T, H, D]; only earlier tokens are in the cache beforehand."""
        backend = select_backend(name, self.want)
        plan = backend.plan(self.step)
        cache = LayerCache(self._cached(self.row_keys), self._cached(self.row_values))
        keys, values = self._new(self.row_keys), self._new(self.row_values)
        backend.write_kv(keys, values, cache, plan)
        return backend.forward(self.queries, keys, values, cache, plan)

    def _cached(self, contexts: list[torch.Tensor]) -> torch.Tensor:
        blocks = max(max(table) for table in self.tables) + 1
        shape = (blocks * BLOCK, self.want.num_kv_heads, self.want.head_dim)
        slots = torch.full(shape, torch.nan, dtype=self.want.dtype)
        for (start, _), table, context in zip(self.rows, self.tables, contexts, strict=True):
            for place in range(start):
                slots[table[place // BLOCK] * BLOCK + place % BLOCK] = context[place]
        return slots.view(blocks, BLOCK, *shape[1:])

    def _new(self, contexts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(
            [context[start:] for (start, _), context in zip(self.rows, contexts, strict=True)]
        )


def _random_tables(contexts: list[int]) -> list[list[int]]:
    counts = [-(-context // BLOCK) for context in contexts]
    free = random.Random(1).sample(range(1, sum(counts) + 2), sum(counts))
    return [[free.pop() for _ in range(count)] for count in counts]


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
    naive = problem.solve("naive")
    torch.testing.assert_close(naive.double(), by_definition(problem), atol=2e-6, rtol=0)
    torch.testing.assert_close(problem.solve("sdpa"), naive, atol=2e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_paged_causal_in_half_precision(dtype: torch.dtype) -> None:
    problem = Problem(STEPS["mixed"], needs((4, 2, 64), paged=True, dtype=dtype))
    naive, sdpa = problem.solve("naive"), problem.solve("sdpa")
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
            problem.solve("sdpa"), problem.solve("naive"), atol=2e-6, rtol=0, msg=str(rows)
        )


def test_naive_is_bitwise_independent_of_the_step() -> None:
    """A row of 30 tokens: at once among others, in two chunks, and one token at a time."""
    want = needs((4, 2, 80), paged=True)
    whole = Problem([(0, 30)], want)
    expected = whole.solve("naive")
    crowd = Problem([(0, 30), (0, 5), (9, 1)], want)
    crowd.queries[:30], crowd.row_keys[0], crowd.row_values[0] = (
        whole.queries,
        whole.row_keys[0],
        whole.row_values[0],
    )
    assert torch.equal(crowd.solve("naive")[:30], expected)
    for start, stop in [(0, 13), (13, 30), *((place, place + 1) for place in range(30))]:
        part = Problem([(start, stop - start)], want)
        part.queries = whole.queries[start:stop]
        part.row_keys, part.row_values = [whole.row_keys[0][:stop]], [whole.row_values[0][:stop]]
        assert torch.equal(part.solve("naive"), expected[start:stop])


LENGTHS = {
    "one_row": [7],
    "equal": [5, 5, 5],
    "similar": [9, 10, 8, 10],
    "mixed": [1, 30, 2, 29, 8, 64, 1, 31, 7],
}


def bidirectional(
    name: str, step: StepTensors, want: AttentionNeeds, qkv: torch.Tensor
) -> torch.Tensor:
    """A backend's answer for queries, keys and values packed as [T, 3, H, D]."""
    backend = select_backend(name, want)
    return backend.forward(qkv[:, 0], qkv[:, 1], qkv[:, 2], None, backend.plan(step))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_bidirectional(lengths: list[int], dtype: torch.dtype) -> None:
    want = needs((4, 4, 32), paged=False, dtype=dtype)
    step = encoder_step([[0] * length for length in lengths])
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
    step = encoder_step([[0] * length for length in lengths])
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


def refused(name: str, **changes: Any) -> str:
    want: dict[str, Any] = {
        "paged": True,
        "device": "cpu",
        "dtype": torch.float32,
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 32,
        "block_size": BLOCK,
    }
    with pytest.raises(AttentionBackendError) as error:
        select_backend(name, AttentionNeeds(**want | changes))
    message = str(error.value)
    assert "\n" not in message
    return message


def test_an_unknown_backend_is_refused_with_those_that_would_do() -> None:
    message = refused("flash")
    assert "'flash'" in message
    assert "sdpa, naive" in message


def test_what_no_backend_can_do_is_refused() -> None:
    assert "torch.int8" in refused("auto", dtype=torch.int8)
    assert "device 'tpu'" in refused("sdpa", device="tpu:0")


def test_only_the_chosen_backend_is_imported() -> None:
    program = (
        "import sys, torch\n"
        "from workers.attention.base import AttentionNeeds\n"
        "from workers.attention.registry import select_backend\n"
        "select_backend('naive', AttentionNeeds(True, 'cpu', torch.float32, 4, 4, 32, 4))\n"
        "print(*sorted(name for name in sys.modules if name.startswith('workers.attention.')))\n"
    )
    root = str(Path(workers.__file__).parent.parent)
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [
        f"workers.attention.{name}" for name in ("base", "naive", "registry")
    ]
