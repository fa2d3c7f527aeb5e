"""The order in which requests get a slot, against a sorted list."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from engine_core.job import Job
from engine_core.messages import GenerateJob, SamplingParams
from engine_core.schedulers.request import Request
from engine_core.schedulers.waiting import WaitingQueue

PARAMS = SamplingParams()


def request(number: int, priority: int) -> Request:
    job = Job(b"client", GenerateJob(number, PARAMS), 1, 0)
    return Request(job, 0, PARAMS, array("i", [1]), max_len=2, seed=0, priority=priority)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2), st.integers(0, 100))))
def test_the_queue_is_a_sorted_list(actions: list[tuple[int, int, int]]) -> None:
    queue, expected = WaitingQueue(), list[tuple[tuple[int, int], Request]]()
    for number, (action, priority, choice) in enumerate(actions):
        if action == 0 and expected:
            queue.remove(expected.pop(choice % len(expected))[1])
        elif action == 1 and expected:
            # The first begins and is preempted.
            _, first = expected.pop(0)
            queue.remove(first)
            queue.put_back(first)
            expected.insert(0, ((-1000, -number), first))
        else:
            new = request(number, priority)
            queue.add(new)
            expected.append(((priority, number), new))
            expected.sort(key=lambda entry: entry[0])
        assert list(queue) == [entry[1] for entry in expected]
        assert len(queue) == len(expected)
