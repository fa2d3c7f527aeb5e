"""Layers with a window hold the blocks of their window: every text is what it is alone, hits and
copies need the window's blocks alone, and memory is what the windows say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.loop.jobs import Job
from engine_core.schedulers.kv_cache import KVCacheManager
from tests.engine_core.configs import layout, with_windows
from tests.engine_core.driver import Driver, prompt_of
from tests.engine_core.integrity import check_blocks

MODELS: dict[str, tuple[int | None, ...]] = {
    "all windowed": (9, 9),
    "every other": (None, 9),
    "one of three": (None, 6, 6),
    "three kinds": (None, 17, 5, 5),
    "two windows": (12, 3),
    "itself alone": (None, 1),
}
"""The window of each layer."""


def driver_of(model: str, num_blocks: int, **options: Any) -> Driver:
    return Driver(num_blocks, model=with_windows(*MODELS[model]), **options)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stages", [1, 3])
def test_long_texts_in_a_cache_of_windows(model: str, stages: int) -> None:
    """Far longer than all blocks of the windowed layers together."""
    driver = driver_of(model, 220, stages=stages)
    prompts = driver.add_each((prompt_of(length, seed=length) for length in (90, 3, 40)), 60)
    driver.assert_texts(prompts, 60)


def test_a_sequence_of_windows_alone_takes_the_blocks_of_its_window() -> None:
    """However long it grows: a window of 9 and a step of 8 tokens, in blocks of 4."""
    driver = driver_of("all windowed", 6, max_step_tokens=8)
    driver.add(0, prompt_of(100), 140)
    driver.drain()
    assert driver.text(0) == driver.reference(prompt_of(100), 140)
    assert driver.scheduler.usage().preemptions == 0
    assert driver.scheduler.usage().kv_blocks_peak <= 6


def test_once_a_prompt_is_computed_only_the_window_is_held() -> None:
    driver = driver_of("all windowed", 100, max_step_tokens=64, steps_ahead=0)
    driver.add(0, prompt_of(60), 5)
    driver.submit()
    assert driver.scheduler.usage().kv_blocks_used == 15
    driver.finish()
    assert driver.scheduler.usage().kv_blocks_used <= driver.layout.blocks_held(60) == 3
    driver.drain()


@pytest.mark.parametrize("model", MODELS)
def test_a_long_prefix_is_found_again(model: str) -> None:
    """A hit needs the window's last blocks only: others may be evicted."""
    driver = driver_of(model, 150)
    prefix = prompt_of(80, seed=1)
    for job in range(3):
        driver.add(job, [*prefix, job], 3)
        driver.drain()
        assert driver.text(job) == driver.reference([*prefix, job], 3)
        assert driver.outputs[job][0].cached == (80 if job else 0)


@pytest.mark.parametrize("model", ["every other", "one of three", "all windowed"])
def test_prompts_of_one_list_share_to_the_token(model: str) -> None:
    driver = driver_of(model, 200, max_step_tokens=64, block_size=32)
    prompts = [[*prompt_of(50, seed=1), 40 + at, at] for at in range(6)]
    driver.add_job(0, prompts, 3)
    driver.drain()
    assert driver.scheduler.usage().cached_tokens == 5 * 50
    for row, prompt in enumerate(prompts):
        assert driver.text(0, row) == driver.reference(prompt, 3)


def test_who_shares_the_beginning_of_a_far_longer_prompt_does_not_wait_for_its_end() -> None:
    sizes = {"max_step_tokens": 256, "block_size": 32, "max_model_len": 2048}
    driver = driver_of("every other", 400, **sizes)
    long, short = prompt_of(1500, seed=1), [*prompt_of(1500, seed=1)[:30], 7]
    driver.add_job(0, [long, short], 2, batch=True)
    driver.drain()
    first = next(batch for batch in driver.submitted if any(batch.samples))
    assert [first.requests[at].row for at in range(2) if first.samples[at]] == [1]
    for row, prompt in enumerate((long, short)):
        assert driver.text(0, row) == driver.reference(prompt, 2)


@pytest.mark.parametrize("model", MODELS)
def test_the_longest_prefix_by_definition(model: str) -> None:
    """Any blocks are lost, of any groups: a prefix is as long as all groups can go on behind it."""
    _longest_prefix(model)


@given(
    model=st.sampled_from(sorted(MODELS)),
    lost=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 11)), max_size=12),
)
def test_the_longest_prefix_with_blocks_lost(model: str, lost: list[tuple[int, int]]) -> None:
    _longest_prefix(model, lost)


def _longest_prefix(model: str, lost: list[tuple[int, int]] | None = None) -> None:
    kv = KVCacheManager(200, layout(4, *MODELS[model], step=64))
    held = kv.prefix([])
    assert kv.fill(held, 12)
    hashes = [bytes([at]) for at in range(12)]
    gone = {(group % len(kv.groups), at) for group, at in lost or []}
    for number, own in enumerate(held):
        for at, block in enumerate(own.ids):
            if (number, at) not in gone:
                kv.register(block, hashes[at])

    def goes_on(count: int) -> bool:
        return all(
            (number, at) not in gone
            for number, group in enumerate(kv.layout.groups)
            for at in range(max(0, (4 * count - group.reach) // 4), count)
        )

    expected = max(count for count in range(13) if goes_on(count))
    assert kv.longest(hashes) == expected
    prefix = kv.prefix(hashes[:expected])
    assert [own.held for own in prefix] == [
        own.ids[part.first : expected] for own, part in zip(held, prefix, strict=True)
    ]


@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.long), 3])
@given(data=st.data())
def test_any_prompts_give_the_reference_texts(stages: int, data: st.DataObject) -> None:
    """Prompts that begin alike, some of them long, in the batch band and alone, with chunks,
    preemptions, steps ahead, aborts; no block is lost."""
    model = data.draw(st.sampled_from(sorted(MODELS)), "model")
    most = data.draw(st.sampled_from([1, 8, 24, 64]), "step")
    size = data.draw(st.sampled_from([1, 4, 8]), "block size")
    longest = 80
    layout_of = layout(size, *MODELS[model], step=most)
    least = layout_of.blocks_alone(-(-longest // size))
    driver = driver_of(
        model,
        least + data.draw(st.sampled_from([0, 1, 7, 100]), "more blocks"),
        stages=stages,
        max_running=data.draw(st.sampled_from([2, 5, 16]), "slots"),
        max_step_tokens=most,
        block_size=size,
        steps_ahead=data.draw(st.integers(0, 1), "ahead"),
    )
    root = prompt_of(longest)
    expected: dict[int, list[int]] = {}
    jobs: dict[int, Job] = {}
    aborted: set[int] = set()
    for number in range(data.draw(st.integers(1, 9), "jobs")):
        prompt = root[: data.draw(st.integers(0, 60), "prefix")]
        prompt += prompt_of(data.draw(st.integers(1, 9), "own"), data.draw(st.integers(1, 2)))
        tokens = data.draw(st.sampled_from([0, 1, 2, 11]), "max_tokens")
        expected[number] = driver.reference(prompt, tokens)
        batch, key = data.draw(st.booleans(), "batch"), data.draw(st.integers(0, 2), "key")
        jobs[number] = driver.add(number, prompt, tokens, batch=batch, key=key)
        for submits in data.draw(st.lists(st.booleans(), max_size=6), "steps"):
            if not (submits and driver.submit()) and driver.batches:
                driver.finish()
        if data.draw(st.integers(0, 7), "abort") == 0:
            victim = data.draw(st.sampled_from(sorted(jobs)), "victim")
            driver.scheduler.abort(jobs[victim])
            aborted.add(victim)
        check_blocks(driver.scheduler.kv)
        driver.assert_sums()
    driver.drain()
    assert all(batch.num_tokens <= most for batch in driver.submitted)
    driver.assert_ends(expected, aborted)
