"""Jobs that would wait too long are refused; accepted jobs begin in time."""

import pytest

from engine_core.loop.admission import QueueBound
from engine_core.messages import Abort, Beat, Failed, Hello
from engine_core.refusal import RefusalError
from tests.engine_core.timed_worker import Seconds, TimedEngine, always
from workers.contract.messages import StepInput

CLIENT = b"client"
BOUND = 2.0
TOKENS_A_SECOND = 1000
STEP_TOKENS = 64
TEXT = 10
"""Tokens of a text or prompt here."""
CAPACITY = TOKENS_A_SECOND / TEXT
LATE = 1.2 * BOUND + 2 * STEP_TOKENS / TOKENS_A_SECOND
"""A first output comes a step after its row begins; that step may have waited for another one."""


def by_tokens(step: StepInput) -> float:
    return max(len(step.tokens) // 4 / TOKENS_A_SECOND, 1e-3)


class Crowd:
    """Jobs that arrive at an engine by its simulated clock, and their outcomes."""

    def __init__(
        self,
        tokenizer,
        seconds: Seconds = by_tokens,
        bound: float = BOUND,
        *,
        encodes: bool = True,
        output: int = 1,
        **changes,
    ) -> None:
        self.timed = TimedEngine(
            tokenizer,
            seconds,
            tick=4e-3,
            encodes=encodes,
            max_step_tokens=STEP_TOKENS,
            max_queue_seconds=bound,
            max_model_len=64,
            max_pending_rows=10**6,
            max_pending_tokens=10**8,
            **changes,
        )
        self._encodes, self._output = encodes, output
        self.arrived: dict[int, float] = {}
        self.began: dict[int, float] = {}
        self.refused: dict[int, Failed] = {}

    @property
    def now(self) -> float:
        return self.timed.worker.now

    def put(self, count: int = 1, priority: int = 0) -> int:
        """A job of so many texts or prompts arrives now. Returns its id."""
        if self._encodes:
            job = self.timed.put_texts(TEXT, count=count, priority=priority)
        else:
            job = self.timed.put(TEXT, self._output, count=count, priority=priority)
        self.arrived[job] = self.now
        return job

    def iterate(self) -> None:
        self.timed.iterate()
        for outputs in self.timed.engine.clients.outputs(CLIENT):
            for failed in outputs.failed:
                self.refused[failed.id] = failed
            for job in [row.job for row in outputs.rows] + [part.job for part in outputs.encoded]:
                self.began.setdefault(job, self.now)
        self.timed.engine.clients.sent[CLIENT] = []

    def run(self, seconds: float, a_second: float) -> float:
        """`a_second` jobs come at even intervals. Returns when the last has come."""
        until, due = self.now + seconds, self.now
        while self.now < until:
            while due <= self.now:
                self.arrived[self.put()] = due
                due += 1 / a_second
            self.iterate()
        return self.now

    def measure(self) -> None:
        """Let the engine learn its rate. It is idle again."""
        self.run(3, 1.5 * CAPACITY)
        while len(self.began) + len(self.refused) < len(self.arrived):
            self.iterate()
        for _ in range(50):
            self.iterate()

    def answer(self, job: int) -> Failed | None:
        """The refusal of a job that has just arrived, within 100 iterations."""
        for _ in range(100):
            self.iterate()
        return self.refused.get(job)

    def wait(self, job: int) -> float:
        return self.began[job] - self.arrived[job]

    def longest_wait(self, since: float = 0.0) -> float:
        """The longest wait for a first output among the jobs that came `since` then."""
        return max(self.wait(job) for job in self.began if self.arrived[job] >= since)


@pytest.mark.parametrize("load", [2, pytest.param(10, marks=pytest.mark.long)])
def test_under_overload_all_that_is_taken_begins_in_time(word_tokenizer, load: float) -> None:
    crowd = Crowd(word_tokenizer)
    start = crowd.run(3, 1.5 * CAPACITY)
    done = len(crowd.began)
    crowd.run(15, load * CAPACITY)
    assert 0.8 * BOUND < crowd.longest_wait(start) < LATE
    assert len(crowd.began) - done > 0.97 * 15 * CAPACITY
    assert len(crowd.refused) > (load - 1.2) * 15 * CAPACITY
    assert all(
        failed.code == "overloaded" and BOUND < (failed.retry_after or 0) < 1.2 * BOUND
        for failed in crowd.refused.values()
    )


@pytest.mark.parametrize(("bound", "load", "wait"), [(0.2, 0.9, 0), (0, 5, 3)])
def test_below_its_capacity_or_without_a_bound_nothing_is_refused(
    word_tokenizer, bound: float, load: float, wait: float
) -> None:
    crowd = Crowd(word_tokenizer, bound=bound)
    crowd.run(5, load * CAPACITY)
    assert not crowd.refused
    assert crowd.longest_wait() > wait


def test_a_slow_phase_is_noticed_and_so_is_its_end(word_tokenizer) -> None:
    pace = [1.0]
    crowd, load = Crowd(word_tokenizer, lambda step: pace[0] * by_tokens(step)), 3 * CAPACITY
    crowd.run(6, load)
    pace[0] = 5.0
    since = crowd.run(8 * BOUND, load)
    crowd.run(4 * BOUND, load)
    assert crowd.longest_wait(since) < LATE + 5 * STEP_TOKENS / TOKENS_A_SECOND * 2
    pace[0] = 1.0
    since = crowd.run(8 * BOUND, load)
    begun = len(crowd.began)
    crowd.run(5, load)
    assert crowd.longest_wait(since) < LATE
    assert len(crowd.began) - begun > 0.97 * 5 * CAPACITY


@pytest.mark.parametrize(("encodes", "rows"), [(False, 2000), (True, 5000)])
def test_an_idle_engine_takes_one_request_however_large(word_tokenizer, encodes, rows) -> None:
    """Its rows share steps with those of other jobs: no job waits for all of them."""
    crowd = Crowd(word_tokenizer, encodes=encodes, max_running=4)
    crowd.measure()
    assert crowd.answer(crowd.put(count=rows)) is None
    job = crowd.put()
    assert crowd.answer(job) is None
    assert crowd.wait(job) < 0.2


def test_who_is_refused_hears_how_long_the_wait_is(word_tokenizer) -> None:
    crowd = Crowd(word_tokenizer, encodes=False, max_running=4)
    crowd.measure()
    jobs = [crowd.put() for _ in range(300)]
    assert crowd.answer(jobs[0]) is None
    refusal = crowd.refused[jobs[-1]]
    assert refusal.retry_after is not None
    assert refusal.retry_after == pytest.approx(BOUND, rel=0.2)
    assert f"would wait about {refusal.retry_after:.3g} s" in refusal.message
    assert "more than the 2 s" in refusal.message
    # What leaves the queue is waited for no longer.
    crowd.timed.engine.clients.put(CLIENT, Abort(jobs))
    job = crowd.put()
    assert crowd.answer(job) is None
    assert crowd.wait(job) < 0.1


@pytest.mark.parametrize("encodes", [True, False])
def test_only_what_begins_before_it_counts(word_tokenizer, encodes: bool) -> None:
    crowd = Crowd(word_tokenizer, encodes=encodes)
    crowd.measure()
    for _ in range(5 * round(BOUND * CAPACITY)):
        crowd.put()
    equal, later, urgent = crowd.put(), crowd.put(priority=7), crowd.put(priority=-1)
    assert crowd.answer(urgent) is None
    assert {equal, later} <= set(crowd.refused)
    assert crowd.wait(urgent) < 0.3


def test_slots_that_are_long_held_are_counted_in(word_tokenizer) -> None:
    """Prompts are short, and each holds a slot for 30 steps: the slots are the limit."""
    crowd = Crowd(word_tokenizer, always(20e-3), bound=4.0, encodes=False, output=30, max_running=4)
    crowd.run(40, 20)
    capacity = 4 / (30 * 20e-3)
    assert len(crowd.refused) == pytest.approx((20 - capacity) * 40, rel=0.1)
    assert 3.0 < crowd.longest_wait(since=20) < 1.2 * 4.0 + 0.2


def test_the_heartbeat_tells_the_expected_wait(word_tokenizer) -> None:
    crowd = Crowd(word_tokenizer, encodes=False, max_running=4)
    crowd.measure()
    for _ in range(190):
        crowd.put()
    clients = crowd.timed.engine.clients
    clients.put(CLIENT, Hello())
    until = crowd.now + 0.5
    told: list[float] = []
    while crowd.now < until:
        crowd.timed.iterate()
        told += [b.expected_wait_s for b in clients.beats(CLIENT) if isinstance(b, Beat)]
        clients.sent[CLIENT] = []
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
