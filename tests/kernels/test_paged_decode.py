"""Attention of one query a row over a paged cache."""

import pytest
import torch

from tests.kernels.paged_rows import SHAPES, Heads, PagedRows, assert_attended
from workers.kernels import paged_decode
from workers.kernels.paged_decode import Launch


def decoding(
    contexts: list[int],
    heads: Heads,
    dtype: torch.dtype,
    device: torch.device,
    page: int = 16,
) -> PagedRows:
    return PagedRows([(context - 1, 1) for context in contexts], heads, page, dtype, device)


def attend(rows: PagedRows) -> torch.Tensor:
    cache = (rows.keys, rows.values, rows.block_tables, rows.slots, rows.context_lens)
    return paged_decode.attend(rows.queries, *cache, rows.heads.size**-0.5)


def attend_with(
    how: Launch,
    rows: PagedRows,
    *,
    dtype: torch.dtype | None = None,
    finished: torch.Tensor | None = None,
) -> torch.Tensor:
    """In `dtype` where given, with `finished` of its own where none is."""
    cache = (rows.keys, rows.values, rows.block_tables, rows.slots, rows.context_lens)
    contiguous = torch.contiguous_format
    out = torch.full_like(rows.queries, torch.nan, dtype=dtype, memory_format=contiguous)
    if finished is None:
        pairs = len(rows.queries) * rows.heads.keys
        finished = torch.zeros(pairs, dtype=torch.int32, device=out.device)
    # What is empty is then full of NaN.
    torch.use_deterministic_algorithms(True)
    try:
        paged_decode._attend_with(how, finished, rows.queries, *cache, rows.heads.size**-0.5, out)
    finally:
        torch.use_deterministic_algorithms(False)
    assert finished.eq(0).all()
    return out


def shift_scores(rows: PagedRows, row: int, levels: torch.Tensor) -> None:
    """Of the first tokens of a row's context by float[tokens]; all heads' alike."""
    page, size = rows.keys.shape[1], rows.heads.size
    levels = levels.to(rows.keys.device)
    tokens = torch.arange(len(levels), device=levels.device)
    blocks = rows.block_tables[rows.slots[row]].long()
    places = blocks[tokens // page] * page + tokens % page
    shifted = (levels * size**0.5 / 8)[:, None].to(rows.keys.dtype)
    rows.queries[row, :, 0] = 8
    rows.row_keys[row][: len(levels), :, 0] = shifted
    rows.keys.flatten(0, 1)[places, :, 0] = shifted.expand(-1, rows.heads.keys)


@pytest.mark.parametrize("heads", SHAPES)
def test_decode(heads: Heads, dot_dtype: torch.dtype, device: torch.device) -> None:
    rows = decoding([64, 1, 65, 150, 16, 33], heads, dot_dtype, device)
    assert_attended(attend(rows), rows.by_definition(), dot_dtype)


@pytest.mark.parametrize("page", [1, 16, 24, 64])
@pytest.mark.parametrize("splits", [1, 2, 5])
def test_pages_and_splits(page: int, splits: int, device: torch.device) -> None:
    """Pages smaller and larger than a tile; more splits than some rows have tiles."""
    rows = decoding([130, 1, 32, 33], Heads(4, 2, 64), torch.float16, device, page)
    how = Launch(tile=32, warps=4, stages=2, splits=splits)
    assert_attended(attend_with(how, rows), rows.by_definition(), torch.float16)


@pytest.mark.parametrize("splits", [1, 3])
def test_a_row_without_tokens_is_zero(splits: int, device: torch.device) -> None:
    rows = decoding([5, 40], Heads(2, 1, 64), torch.float32, device)
    exact = rows.by_definition()
    rows.context_lens[0] = 0
    exact[0] = 0
    how = Launch(tile=16, warps=4, stages=2, splits=splits)
    assert_attended(attend_with(how, rows), exact, torch.float32)


PARTS = {
    "uneven": ([0.0] * 9, 4),
    "far_below": ([0.0, -500.0, 0.0, -500.0], 4),
    "far_below_first": ([-500.0, -500.0, -500.0, 0.0], 2),
    "falling": ([0.0, -3.0, -9.0, -30.0, -90.0, -300.0], 6),
    "more_than_tiles": ([-2.0, 0.0, 2.0], 5),
    "as_many_as_may_be": ([0.0, -1.0, 1.0, 0.5] * 20, paged_decode._MAX_SPLITS),
}
"""What the scores of each tile of 16 tokens are shifted by, and how many splits."""


@pytest.mark.parametrize(("levels", "splits"), PARTS.values(), ids=PARTS)
def test_merge(levels: list[float], splits: int, dtype: torch.dtype, device: torch.device) -> None:
    """Of parts whose weights differ, beside rows of fewer parts, of one, and of none at all."""
    context = 16 * len(levels) - 3
    rows = decoding([context, 16, 7, 40, context], Heads(6, 2, 80), torch.float32, device)
    for row in (0, 4):
        shift_scores(rows, row, torch.tensor(levels).repeat_interleave(16)[:context])
    exact = rows.by_definition()
    rows.context_lens[2] = 0
    exact[2] = 0
    how = Launch(tile=16, warps=4, stages=2, splits=splits)
    assert_attended(attend_with(how, rows, dtype=dtype), exact, dtype)


@pytest.mark.parametrize("heads", [*SHAPES, Heads(32, 1, 256)])
def test_merge_of_any_shape(heads: Heads, device: torch.device) -> None:
    """Whose parts are merged from one at a time to all at once."""
    rows = decoding([150, 70, 1], heads, torch.float32, device)
    how = Launch(tile=16, warps=4, stages=2, splits=7)
    assert_attended(attend_with(how, rows), rows.by_definition(), torch.float32)


def test_merge_of_small_sums(device: torch.device) -> None:
    """Where all scores are far below 0."""
    rows = decoding([64], Heads(2, 1, 64), torch.float16, device)
    shift_scores(rows, 0, torch.tensor([-500.0, -400.0, -600.0, -500.0]).repeat_interleave(16))
    how = Launch(tile=16, warps=4, stages=2, splits=4)
    assert_attended(attend_with(how, rows), rows.by_definition(), torch.float16)


def test_launches_share_what_they_count_with(device: torch.device) -> None:
    """It is 0 after each (`attend_with`), and any number of splits may follow."""
    finished = torch.zeros(8, dtype=torch.int32, device=device)
    for contexts, splits in [([100, 33], 4), ([20, 90, 64, 1], 3), ([100, 33], 2), ([16], 4)]:
        rows = decoding(contexts, Heads(4, 2, 64), torch.float32, device)
        how = Launch(tile=16, warps=4, stages=2, splits=splits)
        got = attend_with(how, rows, finished=finished)
        assert_attended(got, rows.by_definition(), torch.float32)


def test_attend_keeps_count(device: torch.device) -> None:
    rows = decoding([150], Heads(2, 1, 64), torch.float32, device)
    assert paged_decode._launch(rows.queries, rows.keys, rows.block_tables.shape[1]).splits > 1
    finished = paged_decode._finished(rows.queries.device)
    for _ in range(2):
        assert_attended(attend(rows), rows.by_definition(), torch.float32)
        assert paged_decode._finished(rows.queries.device) is finished
        assert finished.eq(0).all()


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
    monkeypatch.setattr(paged_decode, "_processors", lambda device: 132)
    keys = torch.empty(1, 16, 8, 128, dtype=torch.bfloat16)

    def splits(rows: int, max_blocks: int) -> int:
        return paged_decode._launch(keys.new_empty(rows, 32, 128), keys, max_blocks).splits

    assert splits(256, 2048) == 1
    assert splits(1, 2048) == 50
    assert splits(1, 40) == 10
    assert [splits(rows, 2048) for rows in (16, 33, 66)] == [4, 2, 1]
    most = max(rows for rows in range(1, 100) if splits(rows, 2048) > 1)
    assert most * 8 <= len(paged_decode._finished.__wrapped__(torch.device("cpu")))


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
    for _ in range(3):
        out.fill_(torch.nan)
        graph.replay()
        assert_attended(out, rows.by_definition(), torch.float16)
        assert paged_decode._finished(out.device).eq(0).all()
