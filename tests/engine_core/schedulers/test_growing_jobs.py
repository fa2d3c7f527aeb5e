"""Jobs of encoders whose rows come slice by slice, as their texts are tokenized."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.loop.jobs import JobKind
from engine_core.messages import KeyShare
from tests.engine_core.schedulers.test_prefill_only import Steps

Slices = list[list[int]]


@settings(max_examples=150)
@given(
    jobs=st.lists(
        st.tuples(
            st.lists(st.lists(st.integers(1, 16), min_size=1, max_size=5), min_size=1, max_size=5),
            st.integers(0, 1),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    ),
    stages=st.integers(1, 2),
    max_rows=st.none() | st.integers(1, 3),
    data=st.data(),
)
def test_every_row_runs_once_whenever_it_comes(
    jobs: list[tuple[Slices, int, bool]], stages: int, max_rows: int | None, data: st.DataObject
) -> None:
    steps = Steps(stages=stages, max_step_rows=max_rows)
    left = {number: list(slices) for number, (slices, *_) in enumerate(jobs)}
    while any(left.values()):
        number = data.draw(st.sampled_from([number for number, own in left.items() if own]))
        own, (slices, priority, batch) = left[number], jobs[number]
        if number in steps.jobs:
            steps.add_more(number, own.pop(0))
        else:
            count = sum(map(len, slices))
            steps.add(number, own.pop(0), priority, of=count, batch=batch)
        steps.run(data.draw(st.integers(0, 3)))
    steps.drain()
    ran = [row for rows in steps.order for row in rows]
    counts = {number: sum(map(len, slices)) for number, (slices, *_) in enumerate(jobs)}
    assert sorted(ran) == [(number, row) for number in counts for row in range(counts[number])]
    for number in counts:
        own_rows = [row for job, row in ran if job == number]
        assert own_rows == sorted(own_rows)
    assert all(len(rows) <= (max_rows or 99) for rows in steps.order)


def test_a_job_is_as_large_as_its_first_rows_make_it_look() -> None:
    steps = Steps(max_step_tokens=1024, max_model_len=512)
    steps.add(1, [32] * 16, of=16)
    steps.add(2, [32] * 16, of=400)
    assert [steps.jobs[job].kind for job in (1, 2)] == [JobKind.SMALL, JobKind.LARGE]


@pytest.mark.parametrize("ran", [0, 2, 8])
def test_a_job_that_turns_out_large_gives_way_to_small_ones(ran: int) -> None:
    """Whether rows of it wait when long ones come, or not: none of it is lost, and it is limited to
    short steps like any large job."""
    steps = Steps(max_step_tokens=1024, max_model_len=512, max_step_rows=4)
    steps.add(1, [1] * 8, of=208)
    assert steps.jobs[1].kind is JobKind.SMALL
    steps.run(ran // 4)
    steps.add_more(1, [512] * 100)
    assert steps.jobs[1].kind is JobKind.LARGE
    steps.add_each(range(2, 6), [8])
    steps.step()
    assert {job for job, _ in steps.order[-1]} >= {2, 3, 4}
    steps.add_more(1, [512] * 100)
    assert steps.drain()[-1] == 1
    assert sum(1 for rows in steps.order for job, _ in rows if job == 1) == 208


def test_a_job_without_rows_waits_for_nothing_and_holds_up_nobody() -> None:
    steps = Steps()
    steps.add(1, [8, 8], of=6)
    assert steps.step()
    assert steps.scheduler.usage().waiting == 0
    assert not steps.step(), "its other rows are not known"
    steps.now += 60
    steps.add(2, [8])
    steps.add_more(1, [8] * 2)
    steps.step()
    assert Counter(job for job, _ in steps.order[-1]) == {1: 2, 2: 1}
    assert steps.scheduler.abort(steps.jobs[1]) == 2
    steps.drain()


def test_keys_share_steps_though_the_rows_of_one_come_bit_by_bit() -> None:
    steps = Steps(max_step_tokens=32)
    steps.add(1, [8] * 2, of=80, key=KeyShare(1))
    steps.add(2, [8] * 80, key=KeyShare(2))
    for _ in range(19):
        steps.add_more(1, [8] * 4)
        steps.step()
    rows = [sum(job == 1 for job, _ in rows) for rows in steps.order]
    assert set(rows) == {2}, "half of each step"


def test_a_step_has_as_many_rows_as_it_may() -> None:
    steps = Steps(max_step_tokens=1024, max_model_len=64, max_step_rows=3)
    steps.add_each(range(1, 3), [8] * 4, key=KeyShare(1))
    steps.add(3, [64] * 4, key=KeyShare(2))
    steps.add(4, [8] * 4, batch=True)
    steps.drain()
    assert [len(rows) for rows in steps.order] == [3] * 5 + [1]
    of_keys = [{steps.jobs[job].message.key.number for job, _ in rows} for rows in steps.order]
    assert all(2 in first | second for first, second in pairwise(of_keys[:3])), "keys take turns"


@given(
    slices=st.lists(st.lists(st.integers(1, 16), min_size=1, max_size=5), min_size=1, max_size=6),
    batch=st.booleans(),
    data=st.data(),
)
def test_rows_of_lost_steps_run_again_while_others_come(
    slices: Slices, batch: bool, data: st.DataObject
) -> None:
    steps, count = Steps(), sum(map(len, slices))
    left, scheduler = list(slices), steps.scheduler
    steps.add(1, left.pop(0), of=count, batch=batch)
    while True:
        lost = [scheduler.schedule(None) for _ in range(data.draw(st.integers(0, 2)))]
        if left and data.draw(st.booleans()):
            steps.add_more(1, left.pop(0))
        scheduler.restart([each for each in lost if each is not None])
        steps.run(data.draw(st.integers(0, 2)))
        if not left:
            break
    steps.drain()
    ran = [row for rows in steps.order for _, row in rows]
    assert ran == list(range(count))
