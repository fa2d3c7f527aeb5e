"""API keys take turns by their weights; a priority concerns the requests of its own key alone."""

from collections import Counter
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine_core.messages import KeyShare
from engine_core.schedulers.waiting import WaitingQueue
from tests.engine_core.driver import counted_tokens

GREEDY, HONEST, HEAVY = KeyShare(1), KeyShare(2), KeyShare(3, 3.0)
KEYS = (GREEDY, HONEST, HEAVY)


def queue_of() -> WaitingQueue[str]:
    return WaitingQueue(inf, lambda: 0.0)


def begin(queue: WaitingQueue[str]) -> str:
    """The first begins, as in a scheduler."""
    item = next(iter(queue))
    queue.given(item, counted_tokens(queue, item))
    queue.remove(item)
    return item


def test_a_priority_concerns_its_own_key_alone() -> None:
    queue = queue_of()
    for number in range(4):
        queue.add(f"greedy {number}", GREEDY, -number, 10)
    queue.add("honest", HONEST, 5, 10)
    queue.add("late", GREEDY, -3, 10)
    assert list(queue) == ["greedy 3", "honest", "late", "greedy 2", "greedy 1", "greedy 0"]


def test_turns_are_by_tokens_and_weights() -> None:
    queue = queue_of()
    for number in range(1000):
        queue.add(f"1 {number}", GREEDY, 0, 5)
        queue.add(f"2 {number}", HONEST, 0, 20)
        queue.add(f"3 {number}", HEAVY, 0, 10)
    tokens: Counter[str] = Counter()
    for _ in range(700):
        item = next(iter(queue))
        tokens[item[0]] += counted_tokens(queue, item)
        begin(queue)
    assert tokens["2"] / tokens["1"] == pytest.approx(1, rel=0.05)
    assert tokens["3"] / tokens["1"] == pytest.approx(3, rel=0.05)


def test_what_was_preempted_comes_before_all_keys() -> None:
    queue = queue_of()
    queue.add("first", GREEDY, 0, 10)
    queue.add("second", GREEDY, 0, 10)
    begun = [begin(queue), begin(queue)]
    queue.add("honest", HONEST, -1, 10)
    for item in reversed(begun):
        queue.put_first(item, 11)
    assert list(queue) == ["first", "second", "honest"]
    assert (len(queue), queue.num_tokens, queue.tokens_before(-5, HEAVY)) == (3, 32, 22)
    assert [begin(queue) for _ in range(3)] == ["first", "second", "honest"]
    assert (len(queue), queue.num_tokens) == (0, 0)


def test_others_count_before_a_new_one_as_much_as_its_own_key_lets_them() -> None:
    queue = queue_of()
    for number in range(100):
        queue.add(f"greedy {number}", GREEDY, 0, 10)
    assert queue.tokens_before(0) == queue.tokens_before(0, GREEDY) == 1000
    assert queue.tokens_before(0, HONEST) == 0, "it has the next turn"
    queue.add("honest", HONEST, 0, 200)
    assert queue.tokens_before(0, HONEST) == 400
    assert queue.tokens_before(-1, HONEST) == 0
    queue.add("heavy", HEAVY, 0, 150)
    assert queue.tokens_before(0, HEAVY) == 150 + 50 + 50
    assert queue.tokens_before(0, GREEDY) == 1000 + 200 + 150
    assert queue.tokens_before(0) == 1350


@example([(0, 0, 1), (0, 0, 1), (2, 0, 3), (2, 0, 1), (3, 0, 1)])  # two keys of the same time
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 2), st.integers(1, 100))))
def test_the_order_told_is_that_in_which_they_begin(actions: list[tuple[int, int, int]]) -> None:
    """Some leave before. Nothing is lost, and the sums are those of what waits."""
    queue = queue_of()
    tokens_of: dict[str, int] = {}
    for number, (kind, priority, tokens) in enumerate(actions):
        if kind < len(KEYS):
            queue.add(str(number), KEYS[kind], priority, tokens)
            tokens_of[str(number)] = tokens
        elif len(queue):
            item = begin(queue) if kind == len(KEYS) else list(queue)[tokens % len(queue)]
            assert item in tokens_of
            if kind > len(KEYS):
                queue.remove(item)
    told = list(queue)
    assert set(told) <= set(tokens_of)
    assert queue.num_tokens == sum(tokens_of[item] for item in told)
    for limit in (-3, 0, 2):
        before = [item for item in told if actions[int(item)][1] <= limit]
        assert queue.tokens_before(limit) == sum(tokens_of[item] for item in before)
    assert [begin(queue) for _ in told] == told
    assert (len(queue), queue.num_tokens, list(queue), queue.in_turn()) == (0, 0, [], [])
