"""Jobs that would wait too long are refused; accepted jobs begin in time."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from engine_core.loop.admission import QueueBound
from engine_core.messages import Abort, Beat, Failed, Hello
from engine_core.refusal import RefusalError
from tests.engine_core.timed_worker import TimedEngine, always
from workers.contract.messages import StepInput

CLIENT = b"client"
BOUND = 2.0
TOKENS_A_SECOND = 1000
STEP_TOKENS = 64
TEXT = 10
"""Tokens of a text or prompt here."""
LATE = 1.2 * BOUND + 2 * STEP_TOKENS / TOKENS_A_SECOND
"""A first output comes a step after its row begins; that step may have waited for another one."""


def by_tokens(step: StepInput) -> float:
    return max(len(step.tokens) // 4 / TOKENS_A_SECOND, 1e-3)


@dataclass
class Crowd:
    """Jobs that arrive by the simulated clock, and their outcomes."""

    timed: TimedEngine
    arrived: dict[int, float] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)
    refused: dict[int, Failed] = field(default_factory=dict)

    def run(self, seconds: float, a_second: float, put: Callable[[], int]) -> None:
        """`a_second` jobs come at even intervals."""
        until, due = self.now + seconds, self.now
        while self.now < until:
            while due <= self.now:
                self.arrived[put()] = due
                due += 1 / a_second
            self.iterate()

    def iterate(self) -> None:
        self.timed.iterate()
        sent = self.timed.engine.clients.sent
        for outputs in self.timed.engine.clients.outputs(CLIENT):
            for failed in outputs.failed:
                self.refused[failed.id] = failed
            for job in [row.job for row in outputs.rows] + [part.job for part in outputs.encoded]:
                self.began.setdefault(job, self.now)
        sent[CLIENT] = []

    @property
    def now(self) -> float:
        return self.timed.worker.now

    def longest_wait(self, since: float = 0.0) -> float:
        """The longest wait for a first output among the jobs that came `since` then."""
        return max(
            began - self.arrived[job]
            for job, began in self.began.items()
            if self.arrived[job] >= since
        )


def embedder(word_tokenizer, seconds=by_tokens, bound: float = BOUND, **changes) -> TimedEngine:
    return timed_engine(word_tokenizer, seconds, bound, encodes=True, **changes)


def generator(word_tokenizer, seconds=by_tokens, bound: float = BOUND, **changes) -> TimedEngine:
    return timed_engine(word_tokenizer, seconds, bound, **changes)


def timed_engine(word_tokenizer, seconds, bound: float, **changes) -> TimedEngine:
    return TimedEngine(
        word_tokenizer,
        seconds,
        tick=4e-3,
        max_step_tokens=STEP_TOKENS,
        max_queue_seconds=bound,
        max_model_len=64,
        max_pending_rows=10**6,
        max_pending_tokens=10**8,
        **changes,
    )


CAPACITY = TOKENS_A_SECOND / TEXT


@pytest.mark.parametrize("load", [2, 10])
def test_under_overload_all_that_is_taken_begins_in_time(word_tokenizer, load: float) -> None:
    timed = embedder(word_tokenizer)
    crowd = Crowd(timed)
    crowd.run(3, 1.5 * CAPACITY, lambda: timed.put_texts(TEXT))
    start, done = crowd.now, len(crowd.began)
    crowd.run(20, load * CAPACITY, lambda: timed.put_texts(TEXT))
    assert crowd.longest_wait(start) < LATE
    assert crowd.longest_wait(start) > 0.8 * BOUND
    assert len(crowd.began) - done > 0.97 * 20 * CAPACITY
    assert len(crowd.refused) > (load - 1.2) * 20 * CAPACITY
    assert all(
        failed.code == "overloaded" and BOUND < (failed.retry_after or 0) < 1.2 * BOUND
        for failed in crowd.refused.values()
    )


def test_below_its_capacity_nothing_is_refused(word_tokenizer) -> None:
    timed = embedder(word_tokenizer, bound=0.2)
    crowd = Crowd(timed)
    crowd.run(10, 0.9 * CAPACITY, lambda: timed.put_texts(TEXT))
    assert not crowd.refused


def test_without_a_bound_nothing_is_refused(word_tokenizer) -> None:
    timed = embedder(word_tokenizer, bound=0)
    crowd = Crowd(timed)
    crowd.run(5, 5 * CAPACITY, lambda: timed.put_texts(TEXT))
    assert not crowd.refused
    assert crowd.longest_wait() > 3


def test_before_anything_is_measured_nothing_is_refused(word_tokenizer) -> None:
    timed = embedder(word_tokenizer)
    jobs = [timed.put_texts(TEXT) for _ in range(1000)]
    crowd = Crowd(timed, arrived=dict.fromkeys(jobs, 0.0))
    while len(crowd.began) < 1000:
        crowd.iterate()
    assert not crowd.refused


def test_a_slow_phase_is_noticed_and_so_is_its_end(word_tokenizer) -> None:
    pace = [1.0]
    timed = embedder(word_tokenizer, lambda step: pace[0] * by_tokens(step))
    crowd = Crowd(timed)

    def run(seconds: float) -> float:
        crowd.run(seconds, 3 * CAPACITY, lambda: timed.put_texts(TEXT))
        return crowd.now

    run(6)
    pace[0] = 5.0
    since = run(8 * BOUND)
    run(8 * BOUND)
    assert crowd.longest_wait(since) < LATE + 5 * STEP_TOKENS / TOKENS_A_SECOND * 2
    pace[0] = 1.0
    since = run(8 * BOUND)
    begun = len(crowd.began)
    run(10)
    assert crowd.longest_wait(since) < LATE
    assert len(crowd.began) - begun > 0.97 * 10 * CAPACITY


def measured(timed: TimedEngine, put: Callable[[], int]) -> Crowd:
    """The engine knows its rate, and is idle again."""
    crowd = Crowd(timed)
    crowd.run(3, 1.5 * CAPACITY, put)
    while len(crowd.began) + len(crowd.refused) < len(crowd.arrived):
        crowd.iterate()
    for _ in range(50):
        crowd.iterate()
    return crowd


def answer(crowd: Crowd, job: int) -> Failed | None:
    """The refusal of a job that has just arrived; None if there is none within 100 iterations."""
    crowd.arrived[job] = crowd.now
    for _ in range(100):
        crowd.iterate()
    return crowd.refused.get(job)


def test_an_idle_engine_takes_one_request_however_large(word_tokenizer) -> None:
    timed = generator(word_tokenizer, max_running=4)
    crowd = measured(timed, lambda: timed.put(TEXT, 1))
    huge = timed.put(TEXT, 1, count=2000)
    assert answer(crowd, huge) is None
    job = timed.put(TEXT, 1)
    assert answer(crowd, job) is None, "it waits for the large one's share only"
    assert crowd.began[job] - crowd.arrived[job] < 0.2
    assert huge not in timed.engine.core._outbox._outputs


def test_who_is_refused_hears_how_long_the_wait_is(word_tokenizer) -> None:
    timed = generator(word_tokenizer, max_running=4)
    crowd = measured(timed, lambda: timed.put(TEXT, 1))
    jobs = [timed.put(TEXT, 1) for _ in range(300)]
    crowd.arrived |= dict.fromkeys(jobs, crowd.now)
    assert answer(crowd, jobs[0]) is None
    refusal = crowd.refused[jobs[-1]]
    assert refusal.retry_after is not None
    assert refusal.retry_after == pytest.approx(BOUND, rel=0.2)
    assert f"would wait about {refusal.retry_after:.3g} s" in refusal.message
    assert "more than the 2 s" in refusal.message
    # What leaves the queue is waited for no longer.
    timed.engine.clients.put(CLIENT, Abort(jobs))
    job = timed.put(TEXT, 1)
    assert answer(crowd, job) is None
    assert crowd.began[job] - crowd.arrived[job] < 0.1


def test_a_large_job_to_encode_holds_nobody_up(word_tokenizer) -> None:
    """Its rows share steps with those of other jobs: no job has to wait for all of them."""
    timed = embedder(word_tokenizer)
    crowd = measured(timed, lambda: timed.put_texts(TEXT))
    assert answer(crowd, timed.put_texts(TEXT, count=5000)) is None
    job = timed.put_texts(TEXT)
    assert answer(crowd, job) is None
    assert job in crowd.began


@pytest.mark.parametrize("encodes", [True, False])
def test_only_what_begins_before_it_counts(word_tokenizer, encodes: bool) -> None:
    timed = (embedder if encodes else generator)(word_tokenizer)

    def put(priority: int = 0) -> int:
        if encodes:
            return timed.put_texts(TEXT, priority=priority)
        return timed.put(TEXT, 1, priority=priority)

    crowd = measured(timed, put)
    waiting = [put() for _ in range(5 * round(BOUND * CAPACITY))]
    crowd.arrived |= dict.fromkeys(waiting, crowd.now)
    equal, later, urgent = put(), put(priority=7), put(priority=-1)
    crowd.arrived |= dict.fromkeys((equal, later), crowd.now)
    assert answer(crowd, urgent) is None
    assert {equal, later} <= set(crowd.refused)
    assert crowd.began[urgent] - crowd.arrived[urgent] < 0.3


def test_slots_that_are_long_held_are_counted_in(word_tokenizer) -> None:
    """Prompts are short, and each holds a slot for 30 steps: the slots are the limit."""
    timed = generator(word_tokenizer, always(20e-3), bound=4.0, max_running=4)
    crowd = Crowd(timed)
    crowd.run(60, 20, lambda: timed.put(TEXT, 30))
    capacity = 4 / (30 * 20e-3)
    assert len(crowd.refused) == pytest.approx((20 - capacity) * 60, rel=0.1)
    assert 3.0 < crowd.longest_wait(since=20) < 1.2 * 4.0 + 0.2


def test_the_heartbeat_tells_the_expected_wait(word_tokenizer) -> None:
    timed = generator(word_tokenizer, max_running=4)
    crowd = measured(timed, lambda: timed.put(TEXT, 1))
    for _ in range(190):
        crowd.arrived[timed.put(TEXT, 1)] = crowd.now
    timed.engine.clients.put(CLIENT, Hello())
    until = crowd.now + 0.5
    told: list[float] = []
    while crowd.now < until:
        timed.iterate()
        beats = timed.engine.clients.beats(CLIENT)
        told += [beat.expected_wait_s for beat in beats if isinstance(beat, Beat)]
        timed.engine.clients.sent[CLIENT] = []
    assert told[-1] == pytest.approx(190 * TEXT / TOKENS_A_SECOND - 0.5, rel=0.3)


def step(queue: QueueBound, now: float, before: int, after: int, seconds: float) -> float:
    queue.step_submitted(now, before, after)
    queue.step_finished(now + seconds)
    return now + seconds


def test_steps_that_nothing_waits_for_measure_nothing() -> None:
    """A step of one row does not show how fast a queue would advance."""
    queue = QueueBound("m", 10.0)
    now = 0.0
    for _ in range(1000):
        now = step(queue, now, 10, 0, 0.1)
    queue.admit(10**9)
    assert queue.expected_wait(10**9) == 0
    for _ in range(20):
        now = step(queue, now, 200, 100, 0.1)
    assert queue.expected_wait(5000) == pytest.approx(5.0)
    queue.admit(9000)
    with pytest.raises(RefusalError, match=r"about 11 s, more than the 10 s"):
        queue.admit(11_000)


def test_time_between_bursts_is_not_measured() -> None:
    """A step's own time counts, not the idle hour before it."""
    queue = QueueBound("m", 10.0)
    now = 0.0
    for _ in range(20):
        now = step(queue, now, 110, 10, 0.1)
        now = step(queue, now, 10, 0, 0.01)
        now += 3600
    assert queue.expected_wait(1000) == pytest.approx(1.0)
