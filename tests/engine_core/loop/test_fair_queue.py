"""Keys take turns; items of one key keep their order."""

import threading
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from engine_core.loop.fair_queue import BlockingQueue, FairQueue
from engine_core.messages import KeyShare
from tests.patience import PATIENCE

Item = tuple[int, int]
"""Its key and its number."""


def drained(queue: FairQueue[Item]) -> list[Item]:
    taken: list[Item] = []
    while queue:
        taken.append(queue.take())
    return taken


@given(keys=st.lists(st.integers(0, 3), max_size=30), left=st.sets(st.integers(0, 29)))
def test_no_key_is_served_twice_while_another_waits(keys: list[int], left: set[int]) -> None:
    queue: FairQueue[Item] = FairQueue()
    for number, key in enumerate(keys):
        queue.put((key, number), KeyShare(key))
    for number in left & set(range(len(keys))):
        assert queue.discard((keys[number], number), KeyShare(keys[number]))
        assert not queue.discard((keys[number], number), KeyShare(keys[number]))
    taken = drained(queue)
    for key in set(keys):
        own = [number for other, number in taken if other == key]
        assert own == [n for n, other in enumerate(keys) if other == key and n not in left]
    for at, (key, _) in enumerate(taken[1:], 1):
        if taken[at - 1][0] == key:
            assert {other for other, _ in taken[at:]} == {key}, "the others were waiting"


def test_a_key_is_owed_nothing_for_the_time_without_items() -> None:
    queue: FairQueue[Item] = FairQueue()
    for number in range(100):
        queue.put((1, number), KeyShare(1))
    for _ in range(60):
        queue.take()
    for number in range(40):
        queue.put((2, number), KeyShare(2))
    assert Counter(queue.take()[0] for _ in range(20)) == {1: 10, 2: 10}
    drained(queue)
    queue.put((1, 0), KeyShare(1))
    queue.put((3, 0), KeyShare(3))
    assert drained(queue) == [(1, 0), (3, 0)], "all begin anew once none waits"


def test_threads_get_all_items_then_the_end() -> None:
    queue: BlockingQueue[Item] = BlockingQueue()
    taken: list[Item] = []

    def work() -> None:
        while (item := queue.get()) is not None:
            taken.append(item)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    items = [(number % 2, number) for number in range(200)]
    for item in items:
        queue.put(item, KeyShare(item[0]))
    queue.close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(taken) == sorted(items)
