"""How rows of the batch band are scheduled. Of random trees of prompts, in the band and alone, each
row gets the text that it would get alone, and no block is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.loop.jobs import Job
from engine_core.schedulers.cost_model import Coefficients
from tests.engine_core.driver import Driver, jobs_in, prompt_of
from tests.engine_core.integrity import check_blocks
from tests.engine_core.simulated_model import reference

_STOPS = frozenset({7, 11})
_SLOW = Coefficients(step=5e-3, token=1.5e-3, attended=1e-5, context=1e-5)
"""Beside other requests, a step holds about nine tokens of the batch band."""


def _trees(data: st.DataObject) -> list[tuple[list[int], list[list[int]]]]:
    """Groups of prompts as (prefix, own parts): nested prefixes, duplicates, prompts that are the
    prefix of others, own parts of one token."""
    root = prompt_of(40)
    groups: list[tuple[list[int], list[list[int]]]] = []
    for _ in range(data.draw(st.integers(1, 4), "groups")):
        prefix = root[: data.draw(st.integers(0, 30), "prefix")]
        prefix += prompt_of(data.draw(st.sampled_from([0, 0, 3, 9]), "branch"), seed=1)
        owns = st.integers(1, 14).flatmap(
            lambda size: st.sampled_from([root[:size], prompt_of(size, 2), [5] * size])
        )
        groups.append((prefix, data.draw(st.lists(owns, min_size=1, max_size=5), "own parts")))
    return groups


@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.long), 3, 4])
@given(data=st.data())
def test_any_tree_gives_the_reference_texts(stages: int, data: st.DataObject) -> None:
    most = data.draw(st.sampled_from([1, 8, 24, 64]), "step")
    driver = Driver(
        num_blocks=data.draw(st.sampled_from([17, 22, 40, 200]), "blocks"),
        stages=stages,
        max_running=data.draw(st.sampled_from([2, 5, 16]), "slots"),
        max_step_tokens=most,
        steps_ahead=data.draw(st.integers(0, 1), "ahead"),
        costs=data.draw(st.sampled_from([None, _SLOW]), "costs"),
    )
    waiting = [(True, prefix + own) for prefix, owns in _trees(data) for own in owns]
    alone = data.draw(st.lists(st.integers(1, 40), max_size=3), "alone")
    waiting += [(False, prompt_of(size, 3)) for size in alone]
    order = data.draw(st.permutations(range(len(waiting))), "order")
    expected: dict[int, list[int]] = {}
    jobs: dict[int, Job] = {}
    aborted: set[int] = set()
    for number in order:
        batch, prompt = waiting[number]
        tokens = data.draw(st.sampled_from([0, 1, 2, 9, 14]), "max_tokens")
        expected[number] = reference(prompt, tokens, _STOPS)
        key = data.draw(st.integers(0, 2), "key")
        jobs[number] = driver.add(
            number, prompt, tokens, batch=batch, key=key, eos_token_ids=_STOPS
        )
        for submits in data.draw(st.lists(st.booleans(), max_size=4), "steps"):
            if not (submits and driver.submit()) and driver.batches:
                seconds = data.draw(st.floats(1e-6, 1e3), "seconds")
                driver.scheduler.observe(driver.batches[0].work, seconds)
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


_ROWS, _OWN, _OUTPUT = 640, 10, 12
_DEGREE, _PREFIX = 8, 40


def test_no_step_only_decodes_while_a_prompt_could_run() -> None:
    """And from the first end to the last beginning, steps compute as much as rows can take."""
    slots = 32
    driver = Driver(num_blocks=4000, max_running=slots, max_step_tokens=512, steps_ahead=0)
    for row in range(_ROWS):
        prompt = prompt_of(_PREFIX, seed=row // _DEGREE) + prompt_of(_OWN, seed=1000 + row)
        driver.add(row, prompt, _OUTPUT, batch=True)
    full: list[int] = []
    while driver.submit():
        scheduler, batch = driver.scheduler, driver.submitted[-1]
        if len(driver.batch_queue):
            assert batch.num_tokens > batch.num_decodes or not scheduler._running.free_slots
            full.append(batch.num_tokens)
        driver.finish()
    computed = (_PREFIX + _DEGREE * _OWN) / _DEGREE
    balanced = slots * (1 + computed / _OUTPUT)
    steady = full[_OUTPUT:]
    assert sum(steady) / len(steady) >= 0.9 * balanced
    driver.assert_idle()


@pytest.mark.parametrize(("first", "begun"), [(0, [0, 1, 2, 3, 4]), (1, [1, 4, 2, 3])])
def test_rows_begin_in_the_order_in_which_they_come(first: int, begun: list[int]) -> None:
    """While one computes what others share, the next begins, if a slot is free."""
    driver = Driver(num_blocks=400, max_running=2, block_size=32)
    prompts = [prompt_of(21, seed=1), *([*prompt_of(20, seed=2), at] for at in (1, 2, 3))]
    prompts.append(prompt_of(21, seed=3))
    for number in range(first, 5):
        driver.add(number, prompts[number], 4, batch=True)
    driver.drain()
    assert [job.message.id for batch in driver.submitted for job in batch.begun] == begun


def test_outputs_are_expected_as_long_as_those_that_have_finished() -> None:
    driver = Driver(num_blocks=400, max_running=1)
    for number in range(3):
        driver.add(number, prompt_of(5, seed=number), number + 1, batch=True)
    driver.drain()
    driver.add(3, prompt_of(6, seed=3), 30, batch=True, eos_token_ids=_STOPS)
    driver.step()
    assert driver.scheduler._growth._tokens[driver.submitted[-1].requests[0]] == 8
    driver.drain()


def test_a_row_begins_only_if_the_cache_holds_what_all_are_expected_to_need() -> None:
    """So none is preempted, though the prompts alone would fit many times."""
    driver = Driver(num_blocks=24, max_running=16)
    driver.add_each((prompt_of(4, seed=number) for number in range(12)), 20, batch=True)
    driver.drain()
    assert driver.scheduler.usage().preemptions == 0
    assert max(len(batch.requests) for batch in driver.submitted) == 4


def test_online_prompts_go_before_those_of_the_batch_that_have_begun() -> None:
    driver = Driver(num_blocks=400, max_step_tokens=8)
    driver.add(0, prompt_of(60), 2, batch=True)
    driver.submit()
    driver.add(1, prompt_of(8, seed=5), 2)
    driver.submit()
    assert jobs_in(driver.submitted[1]) == [1]
    driver.drain()
