"""Rows of the batch band share the tokens of their prefix, wherever it ends within a block."""

import numpy as np
import pytest

from tests.engine_core.driver import Driver, prompt_of
from tests.engine_core.simulated_model import reference
from workers.contract.messages import DecodeStep, GenerateOutput, StepMask

_BLOCK = 4


def sharing(driver: Driver, prefix_len: int, owns: list[int], max_tokens: int = 3, first: int = 0):
    """Add rows that share a prefix, and have own parts of the lengths `owns`; their jobs and
    prompts."""
    prefix = prompt_of(prefix_len, seed=1000 + first)
    prompts = [prefix + prompt_of(own, seed=first + at + 1) for at, own in enumerate(owns)]
    jobs = [
        driver.add(first + at, prompt, max_tokens, batch=True) for at, prompt in enumerate(prompts)
    ]
    return jobs, prompts


def advance(driver: Driver) -> None:
    """Submit a step, or finish the oldest if none can be."""
    if not driver.submit():
        driver.finish()


def computed(driver: Driver) -> int:
    """Prompt tokens that steps have computed."""
    return sum(
        length
        for batch in driver.submitted
        for start, length, request in zip(batch.starts, batch.lens, batch.requests, strict=True)
        if start < request.prompt_len
    )


def assert_texts(driver: Driver, prompts: list[list[int]], max_tokens: int, but=()) -> None:
    for number, prompt in enumerate(prompts):
        if number not in but:
            assert driver.text(number) == reference(prompt, max_tokens)
            assert sum(row.finish is not None for row in driver.outputs[number]) == 1
    driver.assert_idle()


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("prefix_len", [18, 32, 48, 55, 64, 80])
def test_no_token_of_a_prefix_is_computed_twice(prefix_len: int, stages: int) -> None:
    driver = Driver(num_blocks=200, stages=stages, block_size=32)
    _, prompts = sharing(driver, prefix_len, owns=[1, 5, 4, 1, 7])
    driver.drain()
    assert computed(driver) == prefix_len + 18
    cached = [driver.outputs[number][0].cached for number in range(5)]
    assert cached == [0] + [prefix_len] * 4
    assert_texts(driver, prompts, 3)


def test_what_a_group_of_16_saves_is_counted() -> None:
    """16 times 2,000 + 200 tokens, a tenth as long: 85.2 % are not computed."""
    driver = Driver(num_blocks=2000, max_running=16, max_step_tokens=64)
    _, prompts = sharing(driver, prefix_len=200, owns=[20] * 16)
    driver.drain()
    usage = driver.scheduler.usage()
    assert usage.queried_tokens == 16 * 220
    assert usage.cached_tokens / usage.queried_tokens == pytest.approx(0.852, abs=5e-4)
    assert computed(driver) == 200 + 16 * 20
    assert_texts(driver, prompts, 3)


def test_members_begin_after_the_step_that_computes_the_last_of_the_prefix() -> None:
    driver = Driver(num_blocks=200, max_step_tokens=8)
    sharing(driver, prefix_len=22, owns=[10, 2, 2])
    driver.drain()
    assert [batch.starts for batch in driver.submitted[:4]] == [[0], [8], [16], [24]]
    assert [len(batch.copies) for batch in driver.submitted[:5]] == [0, 0, 0, 0, 4]
    assert driver.submitted[4].starts[-2:] == [22, 22]


def test_another_run_goes_on_while_a_prefix_is_computed() -> None:
    driver = Driver(num_blocks=200, max_step_tokens=64, block_size=32)
    _, first = sharing(driver, prefix_len=20, owns=[2, 2])
    _, second = sharing(driver, prefix_len=20, owns=[3, 3], first=2)
    driver.submit()
    assert {request.job.message.id for request in driver.submitted[0].requests} == {0, 2}
    driver.drain()
    assert_texts(driver, first + second, 3)


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("prefix_len", [3, 8, 22])
def test_an_aborted_leader_is_followed_by_the_next_member(steps: int, prefix_len: int) -> None:
    driver = Driver(num_blocks=200, max_step_tokens=8)
    jobs, prompts = sharing(driver, prefix_len, owns=[6, 2, 2])
    for _ in range(steps):
        advance(driver)
    driver.scheduler.abort(jobs[0])
    driver.drain()
    assert_texts(driver, prompts, 3, but=(0,))


def test_a_preempted_leader_begins_again_and_others_share_it() -> None:
    driver = Driver(num_blocks=20, max_step_tokens=8)
    _, prompts = sharing(driver, prefix_len=22, owns=[6, 2, 2])
    driver.submit()
    alone = prompt_of(60, seed=9)
    driver.add(3, alone, 3)
    driver.drain()
    assert driver.scheduler.usage().preemptions == 1
    assert_texts(driver, [*prompts, alone], 3)


def test_one_token_is_wanted() -> None:
    driver = Driver(num_blocks=64)
    _, prompts = sharing(driver, prefix_len=7, owns=[1, 1, 2], max_tokens=1)
    driver.drain()
    assert_texts(driver, prompts, 1)


def test_a_member_that_alone_fills_the_cache_is_served() -> None:
    """What the group pins gives way."""
    driver = Driver(num_blocks=8)
    _, prompts = sharing(driver, prefix_len=6, owns=[20, 20, 20], max_tokens=6)
    driver.drain()
    assert_texts(driver, prompts, 6)


def test_a_request_that_comes_alone_takes_the_place_of_a_row_of_a_group() -> None:
    driver = Driver(num_blocks=64, max_running=2)
    _, prompts = sharing(driver, prefix_len=6, owns=[2, 2, 2, 2], max_tokens=12)
    for _ in range(4):
        advance(driver)
    alone = prompt_of(9, seed=77)
    driver.add(4, alone, 12)
    if not driver.submit():
        advance(driver)
        driver.submit()
    assert any(request.job.message.id == 4 for request in driver.submitted[-1].requests)
    driver.drain()
    assert_texts(driver, [*prompts, alone], 12)


@pytest.mark.parametrize("broken", [{0}, {0, 1, 2, 3}, {2}])
def test_rows_that_are_not_finite_fail_one_by_one(
    monkeypatch: pytest.MonkeyPatch, broken: set[int]
) -> None:
    """The leader's, all of them, as behind a broken prefix, or a member's: each job has its own
    answer, and the others get their texts."""
    driver, prefix = Driver(num_blocks=60), prompt_of(21, seed=5)
    failed: list[int] = []
    monkeypatch.setattr(driver.outbox, "fail_not_finite", lambda job: failed.append(job.message.id))
    run = driver.pipeline._model.run

    def spoilt(step: DecodeStep, mask: StepMask | None = None) -> GenerateOutput:
        batch = driver.submitted[step.step]
        tokens = np.frombuffer(run(step, mask).tokens, np.int32).copy()
        rows = zip(batch.requests, batch.samples, strict=True)
        owners = [request.job.message.id for request, samples in rows if samples]
        tokens[np.isin(owners, list(broken))] = -1
        return GenerateOutput(step=step.step, tokens=tokens.tobytes())

    monkeypatch.setattr(driver.pipeline._model, "run", spoilt)
    for member in range(4):
        driver.add(member, [*prefix, member], 5, batch=True)
    driver.drain()
    assert sorted(failed) == sorted(broken)
    for member in {0, 1, 2, 3} - broken:
        assert driver.text(member) == reference([*prefix, member], 5)
    driver.assert_idle()
