"""Prompts that begin alike become groups; those of a window of lines wait for each other."""

import asyncio
from array import array
from typing import Any, cast

import pytest

from engine_core.messages import GenerateJob, SamplingParams
from server.batches.base import Line
from server.batches.grouping import Grouping, HeldPrompt, cut, groups_of, windows
from tests.patience import PATIENCE
from workers.contract.token_sampling import GREEDY

PREFIX = list(range(100, 140))


def held(index: int, ids: list[int], salt: str = "", n: int = 1) -> HeldPrompt:
    data = array("i", ids).tobytes()
    params = SamplingParams(sampling=GREEDY, max_tokens=4)
    message = GenerateJob(index, params=params, ids=[data], n=n, cache_salt=salt)
    nobody = cast("Any", None)
    return HeldPrompt(nobody, message, nobody, data, nobody)


def numbers(prompts: list[HeldPrompt]) -> list[int]:
    return sorted(prompt.message.id for prompt in prompts)


def test_prompts_that_begin_alike_are_one_group() -> None:
    (length, shared), (none, alone) = groups_of(
        [held(i, [*PREFIX, i] if i % 2 else [i, i]) for i in range(8)]
    )
    assert (length, numbers(shared)) == (40, [1, 3, 5, 7])
    assert (none, numbers(alone)) == (0, [0, 2, 4, 6])


def test_salts_and_numbers_of_choices_are_kept_apart() -> None:
    kinds = [("", 1), ("a", 1), ("", 2)] * 2
    found = list(groups_of([held(i, [*PREFIX, i], *kind) for i, kind in enumerate(kinds)]))
    assert sorted(numbers(prompts) for _, prompts in found) == [[0, 3], [1, 4], [2, 5]]
    assert all(prefix_len == 40 for prefix_len, _ in found)


def test_prompts_that_share_nothing_come_in_small_messages() -> None:
    sizes = [len(prompts) for _, prompts in groups_of([held(i, [i, i]) for i in range(150)])]
    assert sizes == [64, 64, 22]


def test_a_cut_group_keeps_its_prompts_and_its_bounds() -> None:
    whole = [held(i, [*PREFIX, *[i] * (i + 1)], n=2) for i in range(20)]
    parts = list(cut(whole, 8, 400))
    assert [each for part in parts for each in part] == whole
    for part in parts:
        assert sum(each.message.n for each in part) <= 8
        assert sum(each.tokens for each in part) <= 400 or len(part) == 1


@pytest.mark.parametrize(("size", "sizes"), [(10, [1024, 976]), (1 << 20, [32] * 62 + [16])])
def test_a_window_is_so_many_lines_or_bytes(size: int, sizes: list[int]) -> None:
    body = b"x" * size
    found = list(windows(Line(index, "", "/x", body) for index in range(2000)))
    assert [len(window) for window in found] == sizes
    assert [line.index for window in found for line in window] == list(range(2000))


async def test_a_window_has_come_when_each_line_has_or_is_over() -> None:
    grouping = Grouping()
    come, leave = asyncio.Event(), asyncio.Event()
    arrivals: list[bool] = []

    async def arriving() -> None:
        await come.wait()
        arrivals.append(grouping.arrive() is not None)
        arrivals.append(grouping.arrive() is not None)  # a second job, or another attempt
        await asyncio.sleep(3600)

    async def refused() -> None:
        await leave.wait()

    begun = [asyncio.create_task(arriving()), asyncio.create_task(refused())]
    submitting = asyncio.create_task(grouping.submit(begun))
    for event in (come, leave):
        await asyncio.sleep(0.01)
        assert not submitting.done()
        event.set()
    await asyncio.wait_for(submitting, PATIENCE)
    assert arrivals == [True, False]
    assert grouping.arrive() is None, "this task is no line"
    begun[0].cancel()
