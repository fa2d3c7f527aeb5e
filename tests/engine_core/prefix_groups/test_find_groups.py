"""Prompts that begin alike: every group is one, and no others would save more."""

import time
import tracemalloc
from array import array
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.prefix_groups.find_groups import PromptGroup, find_groups

Prompt = tuple[int, ...]


def ids(prompt: Sequence[int]) -> bytes:
    return array("i", prompt).tobytes()


def grouped(prompts: Sequence[Prompt], least_shared: int = 1) -> list[tuple[int, list[int]]]:
    groups = find_groups([ids(prompt) for prompt in prompts], least_shared)
    found = [(group.prefix_len, sorted(group.members.tolist())) for group in groups]
    return sorted(found, reverse=True)


def saved(groups: Sequence[PromptGroup]) -> int:
    return sum(group.prefix_len * (len(group.members) - 1) for group in groups)


def partitions(rows: list[int]) -> Iterator[list[list[int]]]:
    """Every way to divide `rows`."""
    if not rows:
        yield []
        return
    first, *rest = rows
    for chosen in range(1 << len(rest)):
        own = [first] + [row for index, row in enumerate(rest) if chosen >> index & 1]
        others = [row for index, row in enumerate(rest) if not chosen >> index & 1]
        for divided in partitions(others):
            yield [own, *divided]


def prefix_of(prompts: Sequence[Prompt]) -> int:
    """The tokens that all of them begin with, but for the last of each."""
    most = min(map(len, prompts)) - 1
    return next((i for i in range(most) if len({prompt[i] for prompt in prompts}) > 1), most)


def best(prompts: Sequence[Prompt], least_shared: int) -> int:
    """The most tokens that any groups save."""

    def saving(rows: list[int]) -> int:
        length = prefix_of([prompts[row] for row in rows])
        return length * (len(rows) - 1) if length >= least_shared else 0

    return max(sum(map(saving, groups)) for groups in partitions(list(range(len(prompts)))))


few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)


@given(st.lists(few_tokens, min_size=1, max_size=6), st.integers(1, 3))
def test_no_groups_save_more(prompts: list[Prompt], least_shared: int) -> None:
    groups = find_groups([ids(prompt) for prompt in prompts], least_shared)
    assert saved(groups) == best(prompts, least_shared)


@st.composite
def trees(draw: st.DrawFn) -> list[Prompt]:
    """Prompts that begin like one before: nested, equal, cut short."""
    prompts: list[Prompt] = [draw(few_tokens)]
    for _ in range(draw(st.integers(0, 30))):
        base = draw(st.sampled_from(prompts))
        cut = draw(st.integers(0, len(base)))
        prompts.append(base[:cut] + draw(few_tokens) if draw(st.booleans()) else base)
    return prompts


@given(trees(), st.integers(1, 4))
def test_every_prompt_is_in_one_group(prompts: list[Prompt], least_shared: int) -> None:
    groups = find_groups([ids(prompt) for prompt in prompts], least_shared)
    members = [row for group in groups for row in group.members.tolist()]
    assert sorted(members) == list(range(len(prompts)))
    for length, rows in [(group.prefix_len, group.members.tolist()) for group in groups]:
        assert length == 0 or (length >= least_shared and len(rows) > 1)
        prefix = prompts[rows[0]][:length]
        assert all(prompts[row][:length] == prefix for row in rows)
        assert all(len(prompts[row]) > length for row in rows)
    assert [group.prefix_len for group in groups].count(0) <= 1


@given(trees(), st.integers(1, 4))
def test_more_is_saved_than_by_whole_blocks(prompts: list[Prompt], block: int) -> None:
    groups = find_groups([ids(prompt) for prompt in prompts], least_shared=block)
    # What a prefix cache saves: each prompt's whole blocks that a prompt before it has.
    cached: set[Prompt] = set()
    largest = 0
    for prompt in sorted(prompts):
        blocks = [prompt[:end] for end in range(block, len(prompt), block)]
        largest = max([largest, *(len(each) for each in blocks if each in cached)])
        cached.update(blocks)
    assert saved(groups) >= largest


def test_nested_prefixes() -> None:
    system, document = (9,) * 10, (8,) * 30
    about = [(*system, *document, 1), (*system, *document, 2)]
    others = [(*system, 3, 3), (*system, 4, 4), (*system, 5, 5)]
    assert grouped([*about, *others]) == [(40, [0, 1]), (10, [2, 3, 4])]
    # With so many documents the few tokens behind the system prompt are not worth a group.
    many = [(*system, 7, index, index) for index in range(2)] + others
    assert grouped(many) == [(10, [0, 1, 2, 3, 4])]


def test_prompts_of_one_token_and_equal_ones() -> None:
    assert grouped([(5,), (5,), (5,)]) == [(0, [0, 1, 2])]
    assert grouped([(5, 6), (5, 6), (5,)]) == [(1, [0, 1]), (0, [2])]
    assert grouped([]) == []


def test_short_prefixes_are_not_worth_a_group() -> None:
    prompts = [(1, 2, 3, index) for index in range(4)]
    assert grouped(prompts, least_shared=4) == [(0, [0, 1, 2, 3])]
    assert grouped(prompts, least_shared=3) == [(3, [0, 1, 2, 3])]


def test_a_long_chain_of_prefixes() -> None:
    text = list(range(2000))
    prompts = [tuple(text[:length]) for length in range(1, 2000)]
    started = time.process_time()
    groups = find_groups([ids(prompt) for prompt in prompts], least_shared=1)
    assert time.process_time() - started < 5
    assert saved(groups) > sum(map(len, prompts)) // 3


def batch(groups: int, members: int, prefix: int, own: int) -> list[bytes]:
    """Shuffled."""
    drawn = np.random.default_rng(5)
    shared = drawn.integers(1, 20_000, (groups, 1, prefix), np.int32)
    parts = drawn.integers(1, 20_000, (groups, members, own), np.int32)
    prompts = np.concatenate([shared.repeat(members, axis=1), parts], axis=2)
    flat = prompts.reshape(groups * members, prefix + own)
    return [prompt.tobytes() for prompt in drawn.permutation(flat)]


def test_memory_is_bounded() -> None:
    prompts = batch(groups=50, members=16, prefix=2000, own=200)
    tracemalloc.start()
    groups = find_groups(prompts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert saved(groups) == 50 * 15 * 2000
    assert peak < 3 * sum(map(len, prompts))


@pytest.mark.alone
def test_eight_thousand_prompts_take_a_moment() -> None:
    prompts = batch(groups=500, members=16, prefix=2000, own=200)
    times: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        groups = find_groups(prompts)
        times.append(time.perf_counter() - started)
    assert saved(groups) == 500 * 15 * 2000
    assert min(times) < 0.3, times
