"""The order in which requests get a slot, and their tokens, against a sorted list."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from engine_core.schedulers.requests.waiting import WaitingQueue

Entry = tuple[tuple[float, int], int]
"""((priority, arrival), number of tokens); the arrival is the item."""


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 2), st.integers(0, 100))))
def test_the_queue_is_a_sorted_list(actions: list[tuple[int, int, int]]) -> None:
    queue: WaitingQueue[int] = WaitingQueue(inf, lambda: 0.0)
    expected: list[Entry] = []
    names: list[int] = []  # the items in the order of `expected`
    for number, (action, priority, choice) in enumerate(actions):
        at = choice % len(expected) if expected else 0
        if action == 0 and expected:
            _, tokens = expected.pop(at)
            assert queue.remove(names.pop(at)) == tokens
        elif action == 1 and expected:
            # The first begins and is preempted.
            _, tokens = expected.pop(0)
            assert queue.remove(names[0]) == tokens
            queue.put_back(names[0], choice)
            expected.insert(0, ((-inf, -number), choice))
        elif action == 2 and expected:
            queue.recount(names[at], choice)
            expected[at] = (expected[at][0], choice)
        else:
            queue.add(number, priority, choice)
            entry = ((float(priority), number), choice)
            index = sum(other[0] < entry[0] for other in expected)
            expected.insert(index, entry)
            names.insert(index, number)
        assert list(queue) == [name for group in queue.groups() for name in group] == names
        assert len(queue) == len(expected)
        for limit in (-3, 0, 2):
            before = sum(tokens for (own, _), tokens in expected if own <= limit)
            assert queue.tokens_before(limit) == before
        assert queue.tokens_before() == queue.num_tokens == sum(tokens for _, tokens in expected)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_overdue_goes_before_every_priority_and_after_what_was_preempted() -> None:
    clock = Clock()
    queue: WaitingQueue[str] = WaitingQueue(10, clock)
    queue.add("batch", inf, 1)
    queue.add("late", 5, 20)
    clock.now = 1
    queue.add("later", 0, 300)
    queue.add("gone", 0, 4000)
    queue.remove("gone")
    queue.put_back("preempted", 50000)
    clock.now = 9.9
    queue.add("urgent", -(2**63), 600000)
    queue.promote_overdue()
    assert list(queue) == ["preempted", "urgent", "later", "late", "batch"]
    clock.now = 10
    queue.promote_overdue()
    assert list(queue) == ["preempted", "late", "urgent", "later", "batch"]
    assert queue.tokens_before(-(2**63)) == 650020
    clock.now = 11
    queue.promote_overdue()
    assert list(queue) == ["preempted", "late", "later", "urgent", "batch"]
    queue.wait_anew("late", 5)
    assert list(queue) == ["preempted", "later", "urgent", "late", "batch"]
    queue.wait_anew("urgent", -(2**63))
    clock.now = 20.9
    queue.promote_overdue()
    assert list(queue) == ["preempted", "later", "urgent", "late", "batch"]
    clock.now = 21
    queue.promote_overdue()
    assert list(queue) == ["preempted", "later", "late", "urgent", "batch"]
    assert queue.tokens_before() == queue.num_tokens == 650321
