"""API keys share the steps of an encoder by their weights, however much each of them asks for."""

from collections import Counter

import pytest

from engine_core.messages import KeyShare
from tests.engine_core.schedulers.test_prefill_only import Steps

GREEDY, HONEST, THIRD = KeyShare(1), KeyShare(2), KeyShare(3)


def of_key(steps: Steps) -> list[Counter[int]]:
    """How many rows of each key each step had."""
    return [Counter(steps.jobs[job].message.key.number for job, _ in rows) for rows in steps.order]


def test_a_text_waits_for_no_backlog_of_another_key() -> None:
    steps = Steps()
    for job in range(2_000):
        steps.add(job, [8], key=GREEDY)
    steps.step()
    steps.add(5_000, [16], key=HONEST)
    steps.step()
    assert of_key(steps) == [{1: 4}, {1: 2, 2: 1}]


@pytest.mark.parametrize("length", [4, 8, 16])
@pytest.mark.parametrize("each", [1, 40])
def test_weights_are_shares(length: int, each: int) -> None:
    steps = Steps(max_step_tokens=32)
    shares = [KeyShare(1, 1.0), KeyShare(2, 3.0)]
    for job in range(600 // each):
        for share in shares:
            steps.add(2 * job + share.number - 1, [length] * each, key=share)
    for _ in range(40):
        steps.step()
    rows = sum(of_key(steps), Counter[int]())
    assert rows[2] / rows[1] == pytest.approx(3, rel=0.1)


def test_more_keys_than_fit_a_step_take_turns() -> None:
    steps = Steps(max_step_tokens=32)
    for key in range(8):
        for job in range(20):
            steps.add(key * 20 + job, [16], key=KeyShare(key + 1))
    for _ in range(40):
        steps.step()
    assert sum(of_key(steps), Counter[int]()) == dict.fromkeys(range(1, 9), 10)


def test_what_a_key_leaves_others_take() -> None:
    steps = Steps()
    steps.add(1, [8], key=HONEST)
    for job in range(2, 20):
        steps.add(job, [8], key=GREEDY)
    steps.step()
    assert of_key(steps) == [{1: 3, 2: 1}]


def test_a_key_is_owed_nothing_for_the_time_without_jobs() -> None:
    steps = Steps()
    for job in range(400):
        steps.add(job, [8], key=GREEDY)
    for _ in range(50):
        steps.step()
    for job in range(400, 500):
        steps.add(job, [8], key=HONEST)
    for _ in range(10):
        steps.step()
    assert sum(of_key(steps)[50:], Counter[int]()) == {1: 20, 2: 20}


def test_a_key_that_returns_at_once_gets_no_more_than_a_share() -> None:
    steps = Steps()
    for job in range(400):
        steps.add(job, [8], key=GREEDY)
    for job in range(1_000, 1_010):
        steps.add(job, [8] * 2, key=HONEST)
        steps.step()
    rows = sum(of_key(steps), Counter[int]())
    assert rows[1] >= rows[2]


def test_a_key_whose_job_ends_waits_no_more() -> None:
    steps = Steps()
    steps.add(1, [8] * 9, key=GREEDY)
    steps.add(2, [8] * 9, key=HONEST)
    steps.add(3, [8] * 9, key=THIRD)
    steps.step()
    steps.scheduler.abort(steps.jobs[2])
    steps.drain()
    rows = of_key(steps)
    assert sum(rows, Counter[int]())[1] == 9
    assert all(2 not in step for step in rows[1:])
