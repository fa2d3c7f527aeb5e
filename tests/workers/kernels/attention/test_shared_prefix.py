"""Attention over shared prefixes once a group and over own tokens a row."""

import pytest
import torch

from tests.workers.kernels.grouped_rows import Group, GroupedRows
from tests.workers.kernels.paged_rows import Heads, assert_attended
from workers.kernels.attention import paged_decode, paged_prefill, shared_prefix
from workers.kernels.attention.paged_decode import Launch
from workers.step.paged_step import PrefixParts

HEADS = [
    Heads(4, 4, 64),
    Heads(8, 2, 96),
    pytest.param(Heads(8, 1, 128), marks=pytest.mark.long),
    Heads(7, 1, 24),
]
"""1, 4, 8 and 7 query heads a KV head."""

DECODES = {
    "one_group": [Group(48, [(0, 1), (15, 1), (16, 1), (70, 1)])],
    "several": [Group(16, [(3, 1)] * 3), Group(0, [(20, 1)]), Group(144, [(63, 1), (64, 1)])],
    "none": [Group(0, [(5, 1)]), Group(0, [(64, 1)])],
    "more_than_a_tile": [Group(32, [(row, 1) for row in range(19)])],
}


def computed(rows: GroupedRows, most_parts: int, dtype: torch.dtype) -> PrefixParts:
    """The rows' parts, attended."""
    heads = rows.heads
    parts = rows.parts(most_parts, dtype)
    most = shared_prefix.tokens_a_tile(heads.queries, heads.keys, heads.size, rows.queries.dtype)
    tiles = rows.tiles(most, most_parts)
    shared_prefix.attend(
        *(rows.queries, rows.keys, rows.values, rows.block_tables, rows.slots, tiles, parts),
        heads.kind,
    )
    return parts


def decoded(rows: GroupedRows, parts: PrefixParts, how: Launch | None = None) -> torch.Tensor:
    kind = rows.heads.kind
    cache = (rows.keys, rows.values, rows.block_tables, rows.slots, rows.context_lens)
    out = torch.full_like(rows.queries, torch.nan, memory_format=torch.contiguous_format)
    if how is None:
        paged_decode.attend(rows.queries, *cache, kind, out, prefix=parts)
    else:
        paged_decode._attend_with(how, rows.queries, *cache, kind, out, parts)
    return out


def attended_chunks(rows: GroupedRows) -> torch.Tensor:
    out = torch.full_like(rows.queries, torch.nan, memory_format=torch.contiguous_format)
    longest = max(count for _, count in rows.rows)
    paging = paged_prefill.Paging(rows.block_tables, rows.slots, rows.context_lens)
    paged_prefill.attend(
        *(rows.queries, rows.keys, rows.values, rows.query_starts, longest),
        *(rows.heads.kind, out, paging),
        prefix=computed(rows, 2, torch.float32),
    )
    return out


@pytest.mark.parametrize("groups", DECODES.values(), ids=DECODES)
@pytest.mark.parametrize("heads", HEADS)
def test_decode(heads: Heads, groups: list[Group], device: torch.device) -> None:
    rows = GroupedRows(groups, heads, 16, torch.float16, device)
    attended = decoded(rows, computed(rows, 1, torch.float32))
    assert_attended(attended, rows.by_definition(), torch.float16)


def test_dtypes(dot_dtype: torch.dtype, device: torch.device) -> None:
    rows = GroupedRows(DECODES["several"], Heads(8, 2, 64), 16, dot_dtype, device)
    attended = decoded(rows, computed(rows, 2, torch.float32))
    assert_attended(attended, rows.by_definition(), dot_dtype)


@pytest.mark.parametrize("page", [16, 24, 128])
@pytest.mark.parametrize(
    ("splits", "parts"),
    [
        (1, 1),
        pytest.param(1, 3, marks=pytest.mark.long),
        pytest.param(3, 1, marks=pytest.mark.long),
        (5, 4),
    ],
)
def test_pages_parts_and_splits(page: int, splits: int, parts: int, device: torch.device) -> None:
    """Of own tokens, and of prefixes; more than some have tiles or pages."""
    groups = [
        Group(3 * page, [(0, 1), (page - 1, 1), (130, 1)]),
        Group(0, [(40, 1)]),
        Group(page, [(1, 1), (2 * page, 1)]),
    ]
    rows = GroupedRows(groups, Heads(4, 2, 64), page, torch.float16, device)
    how = Launch(tile=32, warps=4, stages=2, splits=splits)
    attended = decoded(rows, computed(rows, parts, torch.float32), how)
    assert_attended(attended, rows.by_definition(), torch.float16)


def test_parts_of_the_queries_dtype(device: torch.device) -> None:
    rows = GroupedRows(DECODES["several"], Heads(4, 2, 64), 16, torch.float16, device)
    attended = decoded(rows, computed(rows, 2, torch.float16))
    assert_attended(attended, rows.by_definition(), torch.float16)


@pytest.mark.parametrize("splits", [1, 3])
def test_nothing_is_written_for_a_row_without_tokens(splits: int, device: torch.device) -> None:
    rows = GroupedRows(DECODES["several"], Heads(2, 1, 64), 16, torch.float32, device)
    exact, parts = rows.by_definition(), computed(rows, 1, torch.float32)
    rows.context_lens[3] = 0
    attended = decoded(rows, parts, Launch(tile=16, warps=4, stages=2, splits=splits))
    assert attended[3].isnan().all()
    kept = [0, 1, 2, 4, 5]
    assert_attended(attended[kept], exact[kept], torch.float32)


CHUNKS = {
    "short": [Group(48, [(0, 1), (0, 2), (5, 3)]), Group(16, [(0, 1), (40, 7)])],
    "own_parts": [Group(32, [(0, 40), (17, 33), (0, 64)]), Group(0, [(0, 9), (30, 40)])],
    "many": [Group(16, [(0, 3)] * 12)],
}


@pytest.mark.parametrize("groups", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("heads", HEADS)
def test_chunks(heads: Heads, groups: list[Group], device: torch.device) -> None:
    rows = GroupedRows(groups, heads, 16, torch.float16, device)
    assert_attended(attended_chunks(rows), rows.by_definition(), torch.float16)


@pytest.mark.parametrize("page", [24, 128])
def test_pages_of_chunks(page: int, dot_dtype: torch.dtype, device: torch.device) -> None:
    groups = [Group(page, [(0, 5), (page, 2)]), Group(2 * page, [(7, 20), (0, 1)])]
    heads = Heads(4, 2, 64)
    rows = GroupedRows(groups, heads, page, dot_dtype, device)
    assert_attended(attended_chunks(rows), rows.by_definition(), dot_dtype)
