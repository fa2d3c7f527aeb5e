"""Variants of decode attention for many rows of short own contexts: all give the same."""

import pytest
import torch

from tests.workers.kernels.attention.test_shared_prefix import computed
from tests.workers.kernels.grouped_rows import Group, GroupedRows
from tests.workers.kernels.paged_rows import Heads, assert_attended
from workers.kernels.attention import paged_decode_heads, paged_decode_tokens
from workers.step.prefixes import PrefixParts

LAUNCHES = [
    paged_decode_heads.Launch(heads=1, tile=32, warps=1, stages=3),
    paged_decode_heads.Launch(heads=2, tile=16, warps=2, stages=2, evict_first=True),
    paged_decode_tokens.Launch(tile=64, warps=4, stages=3),
    paged_decode_tokens.Launch(tile=64, warps=4, stages=3, programs=1),
    paged_decode_tokens.Launch(tile=64, warps=4, stages=3, tma=True),
    paged_decode_tokens.Launch(tile=64, warps=4, stages=3, programs=1, tma=True, columns=8),
]
Launch = paged_decode_heads.Launch | paged_decode_tokens.Launch


def attend(how: Launch, rows: GroupedRows, prefix: PrefixParts | None) -> torch.Tensor:
    if isinstance(how, paged_decode_tokens.Launch) and how.tma:
        rows.keys.nan_to_num_(1e3)  # whole tiles are read
        rows.values.nan_to_num_(1e3)
    out = torch.full_like(rows.queries, torch.nan, memory_format=torch.contiguous_format)
    cache = (rows.keys, rows.values, rows.block_tables, rows.slots, rows.context_lens)
    scale = rows.heads.size**-0.5
    if isinstance(how, paged_decode_heads.Launch):
        paged_decode_heads.attend(how, rows.queries, *cache, scale, out, prefix)
    else:
        paged_decode_tokens.attend(how, rows.queries, *cache, scale, out, prefix)
    return out


@pytest.mark.parametrize("page", [16, 64, 128])
@pytest.mark.parametrize("heads", [Heads(4, 4, 64), Heads(8, 2, 96), Heads(8, 2, 128)], ids=str)
@pytest.mark.parametrize("how", LAUNCHES, ids=str)
def test_groups(how: Launch, heads: Heads, page: int, device: torch.device) -> None:
    if isinstance(how, paged_decode_tokens.Launch) and how.tma and (page == 16 or heads.size == 96):
        pytest.skip("TMA reads tiles within a page, of a power of two")
    own = [(0, 1), (63, 1), (64, 1), (130, 1)]
    groups = [Group(2 * page, own[:3]), Group(0, own[2:]), Group(page, own[1:])]
    rows = GroupedRows(groups, heads, page, torch.float16, device)
    attended = attend(how, rows, computed(rows, 2, torch.float32))
    assert_attended(attended, rows.by_definition(), torch.float16)


@pytest.mark.parametrize("how", LAUNCHES, ids=str)
def test_without_prefixes_and_rows_without_tokens(how: Launch, device: torch.device) -> None:
    rows = GroupedRows(
        [Group(0, [(5, 1), (64, 1), (40, 1)])], Heads(4, 2, 64), 128, torch.float16, device
    )
    exact = rows.by_definition()
    rows.context_lens[1] = 0
    attended = attend(how, rows, None)
    assert attended[1].isnan().all()
    assert_attended(attended[[0, 2]], exact[[0, 2]], torch.float16)
