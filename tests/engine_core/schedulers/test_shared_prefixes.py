"""Which rows of a step share a prefix, by what the workers are told and by definition. In a
pipeline they are kept in one micro-batch."""

from array import array
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.loop.jobs import Job
from engine_core.messages import GenerateJob, SamplingParams
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.kv_cache import KVCacheManager
from engine_core.schedulers.request import UNSHARED, Request
from engine_core.schedulers.shared_prefixes import SharedPrefixes
from tests.engine_core.configs import layout
from tests.engine_core.driver import Driver, prompt_of

_SIZE = 4


def groups_of(
    prompts: Iterable[list[int]], max_tokens: int = 8, *, batch: bool = False, **options: Any
) -> list[list[list[int]]]:
    """The groups of each step that serves these prompts."""
    driver = Driver(num_blocks=100, max_step_tokens=64, **options)
    driver.add_each(prompts, max_tokens, batch=batch)
    driver.drain()
    sent = [np.frombuffer(groups, np.int32) for groups in driver.pipeline.groups]
    return [groups.reshape(-1, 3).tolist() for groups in sent]


@pytest.mark.parametrize("batch", [False, True])
def test_rows_with_a_common_beginning_are_a_group_while_they_generate(batch: bool) -> None:
    """Whoever computes it is in the group from the next step on."""
    common = prompt_of(2 * _SIZE + 2, seed=1)
    prompts = [*([*common, job] for job in range(3)), prompt_of(2 * _SIZE, seed=2)]
    found = groups_of(prompts, batch=batch)
    if not batch:
        assert found[:2] == [[[1, 2, 2 * _SIZE]], [[0, 3, 2 * _SIZE]]]
    assert [[0, 3, 2 * _SIZE]] in found
    assert all(len(groups) <= 1 for groups in found)


def test_members_of_two_groups_that_mix_are_side_by_side() -> None:
    found = groups_of(([*prompt_of(_SIZE, seed=job % 2), job] for job in range(6)), 12)
    most = max(found, key=lambda groups: sum(count for _, count, _ in groups))
    assert sorted(most) == [[0, 3, _SIZE], [3, 3, _SIZE]]


def test_none_are_sent_if_they_are_not_wanted() -> None:
    prompts = ([*prompt_of(32, seed=1), job] for job in range(3))
    assert not any(groups_of(prompts, disable_cascade_attn=True))


def row(tokens: list[int]) -> Request:
    params = SamplingParams(max_tokens=1)
    job = Job(b"", GenerateJob(1, params=params), 1, 0)
    return Request(job, 0, params, array("i", tokens), max_len=len(tokens) + 1, seed=0)


class Cache:
    """Requests that begin and leave, as the scheduler does it, without steps."""

    def __init__(self) -> None:
        self.kv = KVCacheManager(400, layout(_SIZE))
        self.running: list[Request] = []
        self.shared = SharedPrefixes(self.kv, self.running)

    def begin(self, tokens: list[int]) -> Request:
        request = row([*tokens, len(self.running)])
        request.hashes = self.kv.hash_blocks(request.tokens)
        shared = self.kv.longest(request.hashes)
        (own,) = request.held = self.kv.prefix(request.hashes[:shared])
        self.kv.touch(own.ids)
        self.kv.fill(request.held, self.kv.blocks_for(len(request.tokens)))
        self.running.append(request)
        self.shared.enter(request, shared)
        request.register_blocks(self.kv, len(request.tokens))
        return request

    def leave(self, request: Request) -> None:
        self.running.remove(request)
        self.shared.leave(request)
        self.kv.release(request.blocks)

    def groups(self) -> list[tuple[set[Request], int]]:
        """Members and prefix tokens of the groups of a step of all rows."""
        batch = DecodeBatch(0)
        for request in self.running:
            request.submitted, request.last_step = len(request.tokens), 0
        batch.add_decodes(self.shared.adjacent(self.running))
        flat = iter(self.shared.groups(batch))
        return [
            (set(batch.requests[first : first + count]), prefix)
            for first, count, prefix in zip(flat, flat, flat, strict=True)
        ]


def blocks_of(*names: int) -> list[int]:
    return [token for name in names for token in [name] * _SIZE]


def test_a_row_that_shares_more_with_one_than_with_many_stays_with_the_many() -> None:
    cache = Cache()
    many = [cache.begin(blocks_of(1, 1)) for _ in range(3)]
    deep = [cache.begin(blocks_of(1, 1, 2)) for _ in range(2)]
    assert cache.groups() == [({*many, *deep}, 2 * _SIZE)]


def test_rows_leave_a_shallow_prefix_for_one_that_saves_more() -> None:
    cache = Cache()
    shallow = [cache.begin(blocks_of(1)) for _ in range(2)]
    deep = [cache.begin(blocks_of(1, *range(2, 9))) for _ in range(3)]
    assert sorted(cache.groups(), key=lambda group: group[1]) == [
        (set(shallow), _SIZE),
        (set(deep), 8 * _SIZE),
    ]


def test_a_row_alone_is_no_group() -> None:
    cache = Cache()
    first, second = cache.begin(blocks_of(1, 2)), cache.begin(blocks_of(1, 2))
    cache.leave(first)
    assert cache.groups() == []
    third = cache.begin(blocks_of(1, 2))
    assert cache.groups() == [({second, third}, 2 * _SIZE)]


@given(st.lists(st.tuples(st.lists(st.integers(0, 1), max_size=4), st.booleans()), max_size=40))
def test_groups_hold_the_same_blocks_as_rows_come_and_go(
    moves: list[tuple[list[int], bool]],
) -> None:
    cache, left = Cache(), False
    for path, leaves in moves:
        left = left or leaves
        if leaves and cache.running:
            cache.leave(cache.running[len(path) % len(cache.running)])
        else:
            cache.begin(blocks_of(*path))
        groups = cache.groups()
        members = [request for rows, _ in groups for request in rows]
        assert len(set(members)) == len(members)
        for rows, prefix in groups:
            assert len({tuple(request.blocks[: prefix // _SIZE]) for request in rows}) == 1
        firsts = [request.blocks[0] for request in cache.running]
        # What the departed leave behind is put together when the next one begins.
        assert left or bool(groups) == (len(set(firsts)) < len(firsts))
    for request in list(cache.running):
        cache.leave(request)
        assert request.shared_block == UNSHARED
    assert not cache.shared


_GROUPS, _DEGREE, _SLOTS = 36, 12, 200


def gathered(driver: Driver) -> float:
    """Of the prefixes of all steps, the mean share of each one's rows that are in the step."""
    shares: list[float] = []
    while True:
        while driver.submit():
            batch, running = driver.submitted[-1], driver.scheduler._running
            here = Counter(row.shared_block for row in batch.requests[: batch.num_decodes])
            all_rows = Counter(row.shared_block for row in running if row not in running.prompts)
            shares += [here[block] / all_rows[block] for block in here if block != UNSHARED]
        if not driver.batches:
            return sum(shares) / len(shares)
        driver.finish()


@pytest.mark.parametrize("stages", [2, pytest.param(3, marks=pytest.mark.long)])
def test_rows_of_a_prefix_come_together_and_micro_batches_stay_even(stages: int) -> None:
    driver = Driver(
        num_blocks=20000, stages=stages, max_running=_SLOTS, max_step_tokens=2000, steps_ahead=0
    )
    for job in range(_GROUPS * _DEGREE):
        prompt = prompt_of(80, seed=job // _DEGREE) + prompt_of(5, seed=1000 + job)
        driver.add(job, prompt, 30, batch=True)
    assert gathered(driver) > 0.85
    rows = [batch.num_decodes for batch in driver.submitted]
    full = [pair for pair in pairwise(rows) if sum(pair) > 0.9 * _SLOTS]
    assert full or stages > 2
    assert all(abs(one - other) <= 0.2 * _SLOTS for one, other in full)
    driver.assert_idle()


def test_a_group_larger_than_a_micro_batch_is_divided() -> None:
    driver = Driver(num_blocks=4000, stages=2, max_running=64, max_step_tokens=2000, steps_ahead=0)
    driver.add_each(([*prompt_of(80), job] for job in range(64)), 40, batch=True)
    driver.drain()
    rows = [batch.num_decodes for batch in driver.submitted]
    assert max(rows) <= 40
