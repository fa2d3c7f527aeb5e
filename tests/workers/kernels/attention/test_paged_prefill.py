"""Attention of several queries a row: causal over a paged cache, bidirectional without one."""

import pytest
import torch

from tests.workers.kernels.paged_rows import SHAPES, Heads, PagedRows, assert_attended
from workers.device.tuning import PrefillTile
from workers.kernels.attention import paged_prefill


def attend(
    rows: PagedRows, tile: PrefillTile | None = None, longest: int | None = None
) -> torch.Tensor:
    kind, longest = rows.heads.kind, longest or max(count for _, count in rows.rows)
    paging = paged_prefill.Paging(rows.block_tables, rows.slots, rows.context_lens)
    out = torch.full_like(rows.queries, torch.nan, memory_format=torch.contiguous_format)
    given = (rows.queries, rows.keys, rows.values, rows.query_starts, longest, kind, out, paging)
    if tile is None:
        paged_prefill.attend(*given)
    else:
        paged_prefill._attend_with(tile, *given)
    return out


def attend_bidirectional(rows: PagedRows) -> torch.Tensor:
    out = torch.full_like(rows.queries, torch.nan, memory_format=torch.contiguous_format)
    longest = max(count for _, count in rows.rows)
    parts = rows.queries, rows.new_keys, rows.new_values
    paged_prefill.attend(*parts, rows.query_starts, longest, rows.heads.kind, out)
    return out


@pytest.mark.parametrize("heads", SHAPES)
def test_causal(heads: Heads, dot_dtype: torch.dtype, device: torch.device) -> None:
    rows = PagedRows([(0, 9), (70, 1), (3, 13), (0, 1)], heads, 16, dot_dtype, device)
    assert_attended(attend(rows), rows.by_definition(), dot_dtype)


@pytest.mark.parametrize("page", [1, 16, 24, pytest.param(64, marks=pytest.mark.long)])
@pytest.mark.parametrize("tiles", [(16, 32), (32, 16)])
def test_pages_and_tiles(page: int, tiles: tuple[int, int], device: torch.device) -> None:
    """Groups of three do not divide a tile: the query heads of one token are in two."""
    rows = PagedRows([(29, 37), (0, 33), (32, 1)], Heads(6, 2, 64), page, torch.float16, device)
    tile = PrefillTile(*tiles, warps=4, stages=2)
    assert_attended(attend(rows, tile), rows.by_definition(), torch.float16)


def test_the_longest_row_may_be_overestimated(device: torch.device) -> None:
    rows = PagedRows([(7, 9), (0, 2)], Heads(2, 2, 64), 16, torch.float32, device)
    assert_attended(attend(rows, longest=100), rows.by_definition(), torch.float32)


@pytest.mark.parametrize("heads", SHAPES)
def test_bidirectional(heads: Heads, dot_dtype: torch.dtype, device: torch.device) -> None:
    rows = PagedRows([(0, length) for length in (7, 1, 33, 16)], heads, 16, dot_dtype, device)
    assert_attended(attend_bidirectional(rows), rows.by_definition(causal=False), dot_dtype)


def test_a_row_that_is_not_finite_spoils_no_other(device: torch.device) -> None:
    rows = PagedRows([(0, 6), (0, 8), (0, 7)], Heads(2, 2, 64), 16, torch.float32, device)
    exact = rows.by_definition(causal=False)
    rows.packed[6:14] = torch.nan
    got = attend_bidirectional(rows)
    assert got[6:14].isnan().all()
    finite = [*range(6), *range(14, 21)]
    assert_attended(got[finite], exact[finite], torch.float32)
