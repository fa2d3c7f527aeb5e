"""Attention of one query a row over a paged cache."""

import pytest
import torch

from tests.workers.kernels.paged_rows import SHAPES, Heads, PagedRows, assert_attended
from workers.kernels.attention import paged_decode
from workers.kernels.attention.paged_decode import Launch


def decoding(
    contexts: list[int],
    heads: Heads,
    dtype: torch.dtype,
    device: torch.device,
    page: int = 16,
) -> PagedRows:
    return PagedRows([(context - 1, 1) for context in contexts], heads, page, dtype, device)


def attend(rows: PagedRows, how: Launch | None = None) -> torch.Tensor:
    kind = rows.heads.kind
    cache = (rows.keys, rows.values, rows.block_tables, rows.slots, rows.context_lens)
    out = torch.full_like(rows.queries, torch.nan, memory_format=torch.contiguous_format)
    if how is None:
        paged_decode.attend(rows.queries, *cache, kind, out)
    else:
        paged_decode._attend_with(how, rows.queries, *cache, kind, out)
    return out


@pytest.mark.parametrize("heads", SHAPES)
def test_decode(heads: Heads, dot_dtype: torch.dtype, device: torch.device) -> None:
    rows = decoding([64, 1, 65, 150, 16, 33], heads, dot_dtype, device)
    assert_attended(attend(rows), rows.by_definition(), dot_dtype)


@pytest.mark.parametrize("page", [1, 16, 24, 64])
@pytest.mark.parametrize("splits", [1, pytest.param(2, marks=pytest.mark.long), 5])
def test_pages_and_splits(page: int, splits: int, device: torch.device) -> None:
    """Pages smaller and larger than a tile; more splits than some rows have tiles."""
    rows = decoding([130, 1, 32, 33], Heads(4, 2, 64), torch.float16, device, page)
    how = Launch(tile=32, warps=4, stages=2, splits=splits)
    assert_attended(attend(rows, how), rows.by_definition(), torch.float16)


@pytest.mark.parametrize("splits", [1, 3])
def test_nothing_is_written_for_a_row_without_tokens(splits: int, device: torch.device) -> None:
    rows = decoding([5, 40], Heads(2, 1, 64), torch.float32, device)
    exact = rows.by_definition()
    rows.context_lens[0] = 0
    how = Launch(tile=16, warps=4, stages=2, splits=splits)
    attended = attend(rows, how)
    assert attended[0].isnan().all()
    assert_attended(attended[1:], exact[1:], torch.float32)


def test_rows_that_share_a_slot(device: torch.device) -> None:
    """As those do that pad a captured graph."""
    rows = decoding([20, 1], Heads(2, 1, 64), torch.float32, device)
    exact = rows.by_definition()[1:]
    for name in ("queries", "slots", "context_lens"):
        own = getattr(rows, name)
        setattr(rows, name, own[1:].expand(4, *own.shape[1:]).contiguous())
    assert_attended(attend(rows), exact.expand(4, -1, -1), torch.float32)


def test_the_whole_gpu_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By shapes alone: split while programs are few, never beyond tiles of the longest context."""
    monkeypatch.setattr(paged_decode, "processors", lambda device: 132)
    keys = torch.empty(1, 16, 8, 128, dtype=torch.bfloat16)

    def splits(rows: int, max_blocks: int, least: int = 1) -> int:
        queries = keys.new_empty(rows, 32, 128)
        return paged_decode._launch(queries, keys, max_blocks * 16, least).splits

    assert splits(256, 2048) == 1
    assert splits(1, 2048) == 49
    assert splits(1, 40) == 10
    assert [splits(rows, 2048) for rows in (8, 12, 16, 17, 33)] == [6, 4, 3, 1, 1]
    assert splits(64, 2048, least=16) == 16
    assert splits(1, 2048, least=16) == 49


@pytest.mark.gpu
def test_a_captured_launch_is_right_for_other_lengths(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("CUDA graphs need a GPU")
    rows = decoding([3000, 700, 5], Heads(32, 8, 128), torch.float16, device)
    captured = decoding([1, 1, 1], Heads(32, 8, 128), torch.float16, device)
    lengths = rows.context_lens.clone()
    rows.context_lens.copy_(captured.context_lens)
    attend(rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend(rows)
    rows.context_lens.copy_(lengths)
    graph.replay()
    assert_attended(out, rows.by_definition(), torch.float16)
