"""Causal attention of several queries a row over a paged cache."""

import pytest
import torch

from tests.workers.attention.reference import assert_solved
from tests.workers.attention_problems import Heads, Problem, attention_needs
from tests.workers.kernels.attention.test_paged_decode import SHAPES
from tests.workers.kernels.cases import cases
from workers.attention.base import LayerCache
from workers.device.tuning import PrefillTile
from workers.kernels.attention import paged_prefill
from workers.step.paged_step import PrefixParts


def attend(
    problem: Problem,
    tile: PrefillTile | None = None,
    longest: int | None = None,
    prefix: PrefixParts | None = None,
    cache: LayerCache | None = None,
) -> torch.Tensor:
    step, queries, cache = problem.step, problem.qkv.queries, cache or problem.cache(filled=True)
    rows = step.block_tables, step.slots, step.context_lens
    paging = paged_prefill.Paging(*rows, cache.scales)
    longest = longest or int(step.query_lens.max())
    out = torch.full_like(queries, torch.nan, memory_format=torch.contiguous_format)
    given = (queries, cache.keys, cache.values, step.query_starts, longest, problem.want.kind)
    if tile is None:
        paged_prefill.attend(*given, out, paging, prefix=prefix)
    else:
        paged_prefill._attend_with(tile, *given, out, paging)
    return out


@pytest.mark.parametrize("heads", cases(SHAPES, usual={"(4, 1, 80)", "(2, 1, 256)", "(8, 1, 512)"}))
def test_causal(heads: Heads, dot_dtype: torch.dtype, device: torch.device) -> None:
    want = attention_needs(heads, dtype=dot_dtype, device=device.type, block_size=16)
    problem = Problem([(0, 9), (70, 1), (3, 13), (0, 1)], want)
    assert_solved(attend(problem), problem)


@pytest.mark.parametrize(
    ("page", "tile"),
    cases(
        (1, 16, 24, 64),
        {"low": PrefillTile(16, 32, 4, 2), "high": PrefillTile(32, 16, 4, 2)},
        usual={"24-low", "16-high"},
    ),
)
def test_pages_and_tiles(page: int, tile: PrefillTile, device: torch.device) -> None:
    """Groups of three do not divide a tile: the query heads of one token are in two."""
    want = attention_needs((6, 2, 64), dtype=torch.float16, device=device.type, block_size=page)
    problem = Problem([(29, 37), (0, 33), (32, 1)], want)
    assert_solved(attend(problem, tile), problem)


def test_the_longest_row_may_be_overestimated(device: torch.device) -> None:
    problem = Problem([(7, 9), (0, 2)], attention_needs((2, 2, 64), device=device.type))
    assert_solved(attend(problem, longest=100), problem)
