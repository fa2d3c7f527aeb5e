"""Attention over shared prefixes once a group and over own tokens a row."""

import pytest
import torch

from tests.workers.attention.reference import assert_attended, assert_solved, solution
from tests.workers.attention_problems import Heads, Problem, attention_needs
from tests.workers.kernels.attention.test_paged_decode import attend
from tests.workers.kernels.attention.test_paged_prefill import attend as attend_chunks
from tests.workers.kernels.cases import cases
from tests.workers.kernels.grouped_rows import Group, grouped, prefix_tiles, unwritten_parts
from workers.attention.base import AttentionNeeds
from workers.kernels.attention import shared_prefix
from workers.kernels.attention.paged_decode import Launch
from workers.step.paged_step import PrefixParts

HEADS = [(4, 4, 64), (8, 2, 96), (8, 1, 128), (7, 1, 24)]
"""1, 4, 8 and 7 query heads a KV head."""

DECODES = {
    "one_group": [Group(48, [(0, 1), (15, 1), (16, 1), (70, 1)])],
    "several": [Group(16, [(3, 1)] * 3), Group(0, [(20, 1)]), Group(144, [(63, 1), (64, 1)])],
    "none": [Group(0, [(5, 1)]), Group(0, [(64, 1)])],
    "more_than_a_tile": [Group(32, [(row, 1) for row in range(19)])],
}
CHUNKS = {
    "short": [Group(48, [(0, 1), (0, 2), (5, 3)]), Group(16, [(0, 1), (40, 7)])],
    "own_parts": [Group(32, [(0, 40), (17, 33), (0, 64)]), Group(0, [(0, 9), (30, 40)])],
    "many": [Group(16, [(0, 3)] * 12)],
}


def needs(
    heads: Heads, device: torch.device, dtype: torch.dtype = torch.float16, page: int = 16
) -> AttentionNeeds:
    return attention_needs(heads, device=device.type, dtype=dtype, block_size=page)


def computed(problem: Problem, most_parts: int, dtype: torch.dtype = torch.float32) -> PrefixParts:
    step, cache = problem.step, problem.cache(filled=True)
    parts, tiles = unwritten_parts(problem, most_parts, dtype), prefix_tiles(problem, most_parts)
    paged = (cache.keys, cache.values, step.block_tables, step.slots)
    kind, scales = problem.want.kind, cache.scales
    shared_prefix.attend(problem.qkv.queries, *paged, tiles, parts, kind, scales)
    return parts


@pytest.mark.parametrize(
    ("heads", "groups"),
    cases(
        HEADS,
        DECODES,
        usual={
            "(4, 4, 64)-one_group",
            "(4, 4, 64)-none",
            "(8, 2, 96)-more_than_a_tile",
            "(7, 1, 24)-several",
        },
    ),
)
def test_decode(heads: Heads, groups: list[Group], device: torch.device) -> None:
    problem = grouped(groups, needs(heads, device))
    assert_solved(attend(problem, prefix=computed(problem, 1)), problem)


def test_dtypes(dot_dtype: torch.dtype, device: torch.device) -> None:
    problem = grouped(DECODES["several"], needs((8, 2, 64), device, dot_dtype))
    assert_solved(attend(problem, prefix=computed(problem, 2)), problem)


@pytest.mark.parametrize(
    ("page", "splits", "parts"),
    cases((16, 24, 128), (1, 3, 5), (1, 3, 4), usual={"24-5-4", "128-1-1"}),
)
def test_pages_parts_and_splits(page: int, splits: int, parts: int, device: torch.device) -> None:
    """Of own tokens, and of prefixes; more than some have tiles or pages."""
    groups = [
        Group(3 * page, [(0, 1), (page - 1, 1), (130, 1)]),
        Group(0, [(40, 1)]),
        Group(page, [(1, 1), (2 * page, 1)]),
    ]
    problem = grouped(groups, needs((4, 2, 64), device, page=page))
    how = Launch(tile=32, warps=4, stages=2, splits=splits)
    assert_solved(attend(problem, how, prefix=computed(problem, parts)), problem)


def test_parts_of_the_queries_dtype(device: torch.device) -> None:
    problem = grouped(DECODES["several"], needs((4, 2, 64), device))
    parts = computed(problem, 2, torch.float16)
    assert_solved(attend(problem, prefix=parts), problem)


@pytest.mark.parametrize("splits", [1, 3])
def test_nothing_is_written_for_a_row_without_tokens(splits: int, device: torch.device) -> None:
    problem = grouped(DECODES["several"], needs((2, 1, 64), device, torch.float32))
    problem.step.context_lens[3] = 0
    how = Launch(tile=16, warps=4, stages=2, splits=splits)
    attended = attend(problem, how, prefix=computed(problem, 1))
    assert attended[3].isnan().all()
    kept = [0, 1, 2, 4, 5]
    assert_attended(attended[kept], solution(problem)[kept], torch.float32)


@pytest.mark.parametrize(
    ("heads", "groups"),
    cases(HEADS, CHUNKS, usual={"(4, 4, 64)-short", "(7, 1, 24)-many"}),
)
def test_chunks(heads: Heads, groups: list[Group], device: torch.device) -> None:
    problem = grouped(groups, needs(heads, device))
    assert_solved(attend_chunks(problem, prefix=computed(problem, 2)), problem)


@pytest.mark.parametrize(
    ("page", "dtype"),
    cases((24, 128), (torch.float16, torch.float32), usual={"24-torch.float16"}),
)
def test_pages_of_chunks(page: int, dtype: torch.dtype, device: torch.device) -> None:
    groups = [Group(page, [(0, 5), (page, 2)]), Group(2 * page, [(7, 20), (0, 1)])]
    problem = grouped(groups, needs((4, 2, 64), device, dtype, page))
    assert_solved(attend_chunks(problem, prefix=computed(problem, 2)), problem)
