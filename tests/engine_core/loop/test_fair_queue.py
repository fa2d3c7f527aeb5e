"""A mailbox between threads and the loop, whose threads end with their owner; queues of keys."""

import gc
import os
import select
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.loop.fair_queue import BlockingQueue, FairQueue, Mailbox
from engine_core.loop.jobs import Job
from engine_core.messages import EncodeJob, GenerateJob, Grammar, KeyShare, SamplingParams
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.workflows.generate import DecoderPreprocessor
from engine_core.workflows.tokenizer_threads import TokenizerThreads
from tests.engine_core.configs import execution_config
from tests.engine_core.workflows.test_tokenizer_threads import raw_tokenizer
from tests.patience import PATIENCE


def readable(mailbox: Mailbox[int], milliseconds: int = 0) -> bool:
    poller = select.poll()
    poller.register(mailbox.fileno(), select.POLLIN)
    return bool(poller.poll(milliseconds))


def test_it_is_readable_while_something_is_in_it() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert not readable(mailbox)
    assert mailbox.take() == []
    mailbox.put(1)
    mailbox.put(2, 3)
    assert readable(mailbox)
    assert mailbox.take() == [1, 2, 3]
    assert not readable(mailbox)


def test_an_item_that_is_not_told_of_yet_is_not_taken() -> None:
    """Else the descriptor would be readable with nothing to take, and its poller would spin."""
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    mailbox._items.append(2)  # a thread between the two halves of `put`
    assert mailbox.take() == [1]
    os.eventfd_write(mailbox.fileno(), 1)
    assert mailbox.take() == [2]
    assert not readable(mailbox)


def test_nothing_of_many_threads_is_lost_and_each_keeps_its_order() -> None:
    mailbox: Mailbox[int] = Mailbox()
    threads = [
        threading.Thread(target=lambda first=first: [mailbox.put(first + i) for i in range(500)])
        for first in range(0, 2000, 500)
    ]
    for thread in threads:
        thread.start()
    taken: list[int] = []
    while len(taken) < 2000:
        assert readable(mailbox, 10_000)
        taken += mailbox.take()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(2000))
    for first in range(0, 2000, 500):
        own = [item for item in taken if first <= item < first + 500]
        assert own == sorted(own)


def tokenizing() -> TokenizerThreads:
    threads = TokenizerThreads(Tokenizer(raw_tokenizer(None)), 512)
    threads.put(Job(b"", EncodeJob(1), 1, 0), ["a b c"])
    return threads


def compiling() -> TokenizerThreads:
    threads = DecoderPreprocessor(execution_config(), Tokenizer(raw_tokenizer(None)))
    params = SamplingParams(grammar=Grammar("regex", "a", "regex"))
    threads.put(Job(b"", GenerateJob(1, params=params, ids=[b""]), 1, 0), [])
    return threads


@pytest.mark.parametrize("start", [tokenizing, compiling])
def test_threads_and_descriptors_go_with_their_owner(
    start: Callable[[], TokenizerThreads],
) -> None:
    before = set(threading.enumerate())
    owners = [start() for _ in range(20)]
    threads = set(threading.enumerate()) - before
    descriptors = [Path(f"/proc/self/fd/{owner.fileno()}") for owner in owners]
    assert len(threads) >= 40
    assert all(descriptor.exists() for descriptor in descriptors)
    del owners
    gc.collect()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not any(descriptor.exists() for descriptor in descriptors)


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
