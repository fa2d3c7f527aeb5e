"""Which prefixes are attended once, and by which programs."""

import random

import numpy as np
import pytest

from workers.attention.prefix_tiles import PrefixTables, PrefixTiler
from workers.step.rows import IntArray, offsets

BLOCK = 128
TILER = PrefixTiler(tile_tokens=16, kv_heads=8, block_size=BLOCK, processors=132)


def groups_of(*groups: tuple[int, int, int]) -> IntArray:
    return np.array(groups, np.int32).reshape(-1, 3)


def ones(rows: int) -> IntArray:
    return np.ones(rows, np.int32)


def check(tables: PrefixTables, groups: IntArray, query_lens: IntArray) -> None:
    """Every token of a row with a prefix has each position of it in exactly one part, whose number
    no other part of it has; parts are whole blocks, tiles no larger than they may be."""
    starts = offsets(query_lens)
    seen = np.zeros((int(starts[-1]), max(int(tables.starts.max()), 1)), np.int32)
    numbers: set[tuple[int, int]] = set()
    for first, count, row, start, end, part in tables.tiles.tolist():
        assert 0 < count <= TILER.tile_tokens
        assert start % BLOCK == 0 == end % BLOCK
        assert start < end
        seen[first : first + count, start:end] += 1
        for token in range(first, first + count):
            assert (token, part) not in numbers
            numbers.add((token, part))
            own_row = int(np.searchsorted(starts, token, side="right")) - 1
            (group,) = [group for group in groups.tolist() if group[0] == row]
            assert group[0] <= own_row < group[0] + group[1]
            assert part < tables.counts[own_row]
    for row, (prefix, parts) in enumerate(zip(tables.starts, tables.counts, strict=True)):
        own = slice(starts[row], starts[row + 1])
        assert (seen[own, :prefix] == 1).all()
        assert (seen[own, prefix:] == 0).all()
        assert (parts > 0) == (prefix > 0)


def checked(groups: IntArray, lens: IntArray) -> PrefixTables:
    tables = TILER.tables(groups, lens)
    assert tables is not None
    check(tables, groups, lens)
    return tables


def test_decode_rows() -> None:
    tables = checked(groups_of((0, 16, 1920), (20, 40, 256), (60, 2, 30 * BLOCK)), ones(70))
    assert tables.starts.tolist() == [1920] * 16 + [0] * 4 + [256] * 40 + [3840] * 2 + [0] * 8


def test_short_chunks_pay() -> None:
    checked(groups_of((0, 20, 1920)), np.full(20, 3, np.int32))


@pytest.mark.parametrize("seed", range(20))
def test_random_steps(seed: int) -> None:
    draw = random.Random(seed)
    groups, row = [], draw.randrange(3)
    while row < 200:
        members = draw.choice([2, 3, 16, 17, 90])
        groups.append((row, members, BLOCK * draw.choice([1, 2, 15, 100])))
        row += members + draw.randrange(3)
    lens = np.array([draw.choice([1, 1, 2, 30]) for _ in range(row)], np.int32)
    if seed % 2:
        lens[:] = 1
    tables = checked(groups_of(*groups), lens)
    assert tables.counts.max() <= TILER.most_parts(int(lens.sum()))
    if seed % 2:
        assert len(tables.tiles) <= TILER.most_tiles(row)


def test_a_lone_prefix_fills_the_gpu() -> None:
    tables = checked(groups_of((0, 16, 16000 // BLOCK * BLOCK)), ones(16))
    assert len(tables.tiles) == 16
    assert tables.counts.tolist() == [16] * 16


def test_many_prefixes_are_whole_but_for_a_far_longer_one() -> None:
    groups = [(16 * group, 16, 1920) for group in range(63)]
    tables = checked(groups_of(*groups, (63 * 16, 16, 16000 // BLOCK * BLOCK)), ones(1024))
    assert tables.counts.tolist() == [1] * 1008 + [4] * 16
    assert (tables.tiles[:4, 2] == 1008).all(), "what takes longest starts first"


@pytest.mark.parametrize(
    ("groups", "lens"),
    [
        (groups_of(), ones(5)),
        (groups_of((0, 1, 1 << 20)), ones(5)),
        (groups_of((0, 4, 0)), ones(5)),
        (groups_of((0, 4, BLOCK)), ones(5)),
        (groups_of((0, 4, 16384)), np.full(5, 200, np.int32)),
    ],
    ids=["none", "of_one", "no_prefix", "too_little", "long_chunks"],
)
def test_what_does_not_pay(groups: IntArray, lens: IntArray) -> None:
    assert TILER.tables(groups, lens) is None


@pytest.mark.parametrize(
    ("members", "prefix", "pays"),
    [(16, 1920, True), (4, 8192, False), (8, 8192, True), (64, 128, False), (64, 512, True)],
)
def test_a_prefix_pays_where_it_was_measured_to(members: int, prefix: int, pays: bool) -> None:
    """One group of 32 query heads over 8 KV heads on a GPU of 132 processors."""
    assert (TILER.tables(groups_of((0, members, prefix)), ones(members)) is not None) == pays
