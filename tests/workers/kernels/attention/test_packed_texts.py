"""Attention within whole texts, and the tiles of their queries."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.attention.reference import assert_attended, assert_solved, solution
from tests.workers.attention_problems import Heads, PackedProblem, attention_needs
from tests.workers.kernels.attention.test_paged_decode import SHAPES
from tests.workers.kernels.cases import cases
from workers.attention.backends.flash_attn import FlashAttention4Backend
from workers.device.tuning import TEXT_TILE_TOKENS, PrefillTile
from workers.kernels.attention import packed_texts
from workers.step.packed_step import most_tiles, text_tiles
from workers.step.rows import offsets

TILES = {"low": PrefillTile(16, 32, 4, 2), "high": PrefillTile(64, 16, 4, 2)}
BESIDE = [7, 1, 33, 16]
"""Texts that share a tile."""


def attend(problem: PackedProblem, tile: PrefillTile | None = None) -> torch.Tensor:
    qkv, step, kind = problem.qkv, problem.step, problem.want.kind
    out = torch.full_like(qkv.queries, torch.nan, memory_format=torch.contiguous_format)
    texts = step.tiles, step.positions
    tile = tile or packed_texts.tile_for_texts(problem.want.head_dim, problem.want.dtype)
    packed_texts.attend(tile, *qkv, *texts, kind, out, problem.bias)
    return out


@pytest.mark.parametrize("heads", cases(SHAPES, usual={"(4, 1, 80)", "(2, 1, 256)"}))
def test_texts_that_share_a_tile(
    heads: Heads, dot_dtype: torch.dtype, device: torch.device
) -> None:
    want = attention_needs(heads, paged=False, dtype=dot_dtype, device=device.type)
    problem = PackedProblem(BESIDE, want)
    assert_solved(attend(problem), problem)


def test_short_texts_are_not_for_flash_attention(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FlashAttention4Backend, "_load", lambda _: {})
    want = attention_needs((4, 2, 32), paged=False, device=device.type)
    problem = PackedProblem(BESIDE, want)
    assert_solved(problem.solve(FlashAttention4Backend(want)), problem)


@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
@pytest.mark.parametrize("window", [None, 9, 70])
def test_texts_beyond_a_tile(tile: PrefillTile, window: int | None, device: torch.device) -> None:
    want = attention_needs((2, 1, 16), paged=False, window=window, device=device.type)
    problem = PackedProblem([5, 150, 128, 90, 39, 129, 2], want)
    assert_solved(attend(problem, tile), problem)


@pytest.mark.parametrize("lengths", [BESIDE, [140, 3, 20]], ids=["beside", "beyond"])
@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
def test_position_bias(tile: PrefillTile, lengths: list[int], device: torch.device) -> None:
    want = attention_needs((2, 2, 16), paged=False, softcap=7.0, device=device.type)
    bias = torch.randn(2, 2 * 150 - 1, generator=torch.Generator().manual_seed(1))
    problem = PackedProblem(lengths, want, bias=bias.to(device))
    assert_solved(attend(problem, tile), problem)


def test_a_text_that_is_not_finite_spoils_no_other(device: torch.device) -> None:
    problem = PackedProblem([6, 8, 7], attention_needs((2, 2, 64), paged=False, device=device.type))
    exact = solution(problem)
    problem.packed[6:14] = torch.nan
    got = attend(problem)
    assert got[6:14].isnan().all()
    finite = [*range(6), *range(14, 21)]
    assert_attended(got[finite], exact[finite], torch.float32)


@given(st.lists(st.integers(1, 3 * TEXT_TILE_TOKENS), min_size=1, max_size=40))
def test_tiles_hold_whole_texts_or_parts_of_one(lens: list[int]) -> None:
    starts = offsets(np.array(lens, np.int32))
    tiles = text_tiles(starts)
    assert tiles.dtype == np.int32
    assert len(tiles) <= most_tiles(sum(lens))
    queries = [
        query
        for first, _, end in tiles.tolist()
        for query in range(first, min(first + TEXT_TILE_TOKENS, end))
    ]
    assert queries == [*range(sum(lens))]
    for first, begin, end in tiles.tolist():
        assert {begin, end} <= {*starts.tolist()}
        several = np.count_nonzero((starts[:-1] >= begin) & (starts[:-1] < end)) > 1
        assert first == begin if several else (first - begin) % TEXT_TILE_TOKENS == 0
        assert not several or end - begin <= TEXT_TILE_TOKENS


@given(st.lists(st.integers(1, TEXT_TILE_TOKENS), min_size=1, max_size=40))
def test_no_text_would_fit_the_tile_before(lens: list[int]) -> None:
    tiles = text_tiles(offsets(np.array(lens, np.int32))).tolist()
    for (first, _, _), (_, begin, end) in pairwise(tiles):
        following = next(
            length
            for start, length in zip(np.cumsum([0, *lens]), lens, strict=False)
            if start == begin
        )
        assert begin + following - first > TEXT_TILE_TOKENS or end - begin < following
