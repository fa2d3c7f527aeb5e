"""What waits of one API key, against a sorted list."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from engine_core.schedulers.waiting import PriorityQueue

Entry = tuple[tuple[float, int], int]
"""((priority, arrival), number of tokens); the arrival is the item."""


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2), st.integers(0, 100))))
def test_the_queue_is_a_sorted_list(actions: list[tuple[int, int, int]]) -> None:
    queue: PriorityQueue[int] = PriorityQueue(inf, lambda: 0.0)
    expected: list[Entry] = []
    names: list[int] = []  # the items in the order of `expected`
    for number, (action, priority, choice) in enumerate(actions):
        at = choice % len(expected) if expected else 0
        if action == 0 and expected:
            _, tokens = expected.pop(at)
            assert queue.remove(names.pop(at)) == tokens
        elif action == 1 and expected:
            queue.recount(names[at], choice)
            expected[at] = (expected[at][0], choice)
        else:
            queue.add(number, priority, choice)
            entry = ((float(priority), number), choice)
            index = sum(other[0] < entry[0] for other in expected)
            expected.insert(index, entry)
            names.insert(index, number)
        assert list(queue) == [name for group in queue.groups() for name in group] == names
        assert [queue.tokens_of(name) for name in names] == [tokens for _, tokens in expected]
        for limit in (-3, 0, 2):
            before = sum(tokens for (own, _), tokens in expected if own <= limit)
            assert queue.tokens_before(limit) == before
        assert queue.num_tokens == sum(tokens for _, tokens in expected)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_overdue_goes_before_every_priority() -> None:
    clock = Clock()
    queue: PriorityQueue[str] = PriorityQueue(10, clock)
    queue.add("late", 5, 20)
    clock.now = 1
    queue.add("later", 0, 300)
    queue.add("gone", 0, 4000)
    queue.remove("gone")
    clock.now = 9.9
    queue.add("urgent", -(2**63), 600000)
    queue.promote_overdue()
    assert list(queue) == ["urgent", "later", "late"]
    clock.now = 10
    queue.promote_overdue()
    assert list(queue) == ["late", "urgent", "later"]
    assert queue.tokens_before(-(2**63)) == 600020
    clock.now = 11
    queue.promote_overdue()
    assert list(queue) == ["late", "later", "urgent"]
    assert queue.wait_on("late") == 20
    assert list(queue) == ["later", "urgent", "late"]
    assert queue.wait_on("urgent") == 600000
    clock.now = 20.9
    queue.promote_overdue()
    assert list(queue) == ["later", "urgent", "late"]
    clock.now = 21
    queue.promote_overdue()
    assert list(queue) == ["later", "late", "urgent"]
    assert queue.num_tokens == 300
