"""How late the next step is submitted: arrivals join it, and the worker never waits."""

import os
import threading
import time

import numpy as np
import pytest

from engine_core.loop.pace import Pacer
from tests.engine_core.fake_transport import Engine
from tests.engine_core.timed_worker import TICK, TimedEngine, always
from workers.contract.messages import EncodeStep, StepInput, StepTimes

STEP = 5e-3
_LEARNT = 20
"""Steps after which every kind of step of these tests has been seen."""


constant = always(STEP)


def tokens_of(step: StepInput) -> int:
    return len(step.tokens) // 4


def joined(timed: TimedEngine, arrival: int) -> int:
    """How many steps after `arrival`, the running one, the next prompt was computed."""
    timed.iterate_until_step(arrival + 4)
    steps = timed.worker.submitted[arrival:]
    return next(index for index, step in enumerate(steps) if tokens_of(step) > 4)


def generating(tokenizer, rows: int = 3, seconds=constant, **changes) -> TimedEngine:
    timed = TimedEngine(tokenizer, seconds, **changes)
    for _ in range(rows):
        timed.put(prompt_len=2, max_tokens=240)
    timed.iterate_until_step(_LEARNT)
    return timed


@pytest.mark.parametrize(
    ("fraction", "paced", "later"), [(0.1, True, 1), (0.7, True, 1), (0.5, False, 2)]
)
def test_an_arrival_joins_the_next_step(word_tokenizer, fraction, paced, later) -> None:
    """The control: without pacing the next step is submitted at once."""
    timed, running = generating(word_tokenizer), _LEARNT + 2
    if not paced:
        timed.engine.core._pacer = None
    timed.iterate_until_step(running)
    timed.iterate_until_step(running, fraction)
    timed.put(prompt_len=12, max_tokens=4)
    assert joined(timed, running) == later


def test_a_pipeline_is_kept_full(word_tokenizer) -> None:
    timed = generating(word_tokenizer, num_stages=2)
    assert len(timed.engine.core._in_flight) == 3


@pytest.mark.parametrize("lead", [pytest.param(0.1e-3, marks=pytest.mark.long), 0.9e-3])
def test_the_worker_is_not_kept_waiting_in_steady_decode(word_tokenizer, lead: float) -> None:
    """Steps that last longer and longer, 2 % more or less."""
    noise = np.random.default_rng(1).uniform(0.98, 1.02, 1000)

    def seconds(step: StepInput) -> float:
        return STEP * (1 + step.step / 1000) * float(noise[step.step])

    timed = generating(word_tokenizer, seconds=seconds, lead=always(lead))
    timed.iterate_until_step(200)
    worker = timed.worker
    assert sum(worker.idle[_LEARNT:200]) < 0.005 * (worker.ends[199] - worker.ends[_LEARNT])
    early = [worker.ends[step - 1] - worker.submit_times[step] for step in range(150, 200)]
    assert max(early) < lead + 0.2 * STEP, "and yet it is late"


def test_the_margin_follows_what_the_worker_needs(word_tokenizer) -> None:
    """A lead of almost twice the first margin is learnt, at the cost of some gaps."""
    timed = generating(word_tokenizer, lead=always(1.8e-3))
    timed.iterate_until_step(230)
    worker = timed.worker
    assert sum(worker.idle[_LEARNT:30]) > 2e-3, "gaps at first"
    assert sum(worker.idle[180:230]) < 4e-3
    assert timed.engine.core._pacer is not None
    assert 1.7e-3 < timed.engine.core._pacer._margins[False] < 2.2e-3


def lead_of_prompts(step: StepInput) -> float:
    return 1.8e-3 if len(step.tokens) > len(step.query_lens) else 0.4e-3


def test_steps_with_prompts_have_a_margin_of_their_own(word_tokenizer) -> None:
    """A step with prompts is submitted as early as the worker needs it; a prompt that comes later
    still joins the next step."""
    timed = generating(word_tokenizer, lead=lead_of_prompts, max_running=16)
    early = range(_LEARNT + 3, 170, 3)
    for step in early:
        timed.iterate_until_step(step, 0.3)
        timed.put(prompt_len=12, max_tokens=2)
    timed.iterate_until_step(175)
    worker = timed.worker
    assert np.mean([worker.idle[step + 1] for step in early[-10:]]) < 0.1e-3
    lead = [worker.ends[step] - worker.submit_times[step + 1] for step in early[-10:]]
    assert 1.7e-3 < min(lead) <= max(lead) < 2.2e-3
    assert timed.engine.core._pacer is not None
    margins = list(timed.engine.core._pacer._margins)
    for step in range(180, 220, 4):
        timed.iterate_until_step(step, 0.8)
        timed.put(prompt_len=12, max_tokens=2)
        assert joined(timed, step) == 1
        assert 0.4e-3 < worker.idle[step + 1] < 1.2e-3
    assert timed.engine.core._pacer._margins[True] == margins[True]
    assert timed.engine.core._pacer._margins[False] <= margins[False]


@pytest.mark.parametrize(("fraction", "in_time"), [(0.5, 40), (0.77, 4)])
def test_a_burst_of_arrivals_does_not_keep_the_worker_waiting(
    word_tokenizer, fraction: float, in_time: int
) -> None:
    timed = generating(
        word_tokenizer,
        max_running=500,
        max_step_tokens=4096,
        max_pending_rows=500,
        max_pending_tokens=4096,
    )
    timed.iterate_until_step(_LEARNT, fraction)
    for _ in range(400):
        timed.put(prompt_len=2, max_tokens=2)
    timed.iterate_until_step(_LEARNT + 8)
    worker = timed.worker
    rows = len(worker.submitted[_LEARNT + 1].query_lens) // 4
    assert in_time <= rows - 3 < 100, "those that could be received in time"
    accepted = [len(outputs.accepted) for outputs in timed.engine.clients.outputs(b"client")]
    assert sum(accepted) == 403
    assert max(worker.idle[_LEARNT:]) < 50e-6


def test_estimates_recover_from_another_regime(word_tokenizer) -> None:
    """Longer steps are learnt while nobody waits, shorter ones at the cost of one gap."""
    slower, faster = 60, 100
    speed = {"seconds": STEP}
    timed = generating(word_tokenizer, seconds=lambda step: speed["seconds"])
    timed.iterate_until_step(slower)
    speed["seconds"] = 2 * STEP
    timed.iterate_until_step(faster)
    speed["seconds"] = STEP / 2
    timed.iterate_until_step(140)
    worker = timed.worker
    assert max(worker.idle[slower:faster]) == 0
    assert worker.ends[faster - 2] - worker.submit_times[faster - 1] < 0.3 * STEP
    gaps = [idle for idle in worker.idle[faster:140] if idle > 50e-6]
    assert len(gaps) <= 2
    timed.iterate_until_step(140, 0.2)
    timed.put(prompt_len=12, max_tokens=4)
    assert joined(timed, 140) == 1


@pytest.mark.parametrize(("slots", "at_once"), [(8, False), (3, True)])
def test_nothing_is_held_when_no_slot_is_free(word_tokenizer, slots: int, at_once: bool) -> None:
    timed, step = generating(word_tokenizer, max_running=slots), _LEARNT + 5
    timed.iterate_until_step(step)
    worker = timed.worker
    assert (worker.submit_times[step] - worker.ends[step - 2] <= 2 * TICK) == at_once


def test_nothing_is_held_when_what_waits_fills_the_step(word_tokenizer) -> None:
    timed = generating(word_tokenizer, rows=3)
    timed.iterate_until_step(_LEARNT, 0.1)
    before = len(timed.worker.submitted)
    timed.put(prompt_len=40, max_tokens=2)
    timed.iterate()
    assert len(timed.worker.submitted) == before, "another prompt fits"
    timed.put(prompt_len=40, max_tokens=2)
    timed.iterate()
    assert len(timed.worker.submitted) == before + 1


def quiet_engine(tokenizer, held_s: float) -> Engine:
    """In real time, with nothing to read from anywhere, a minute to the next check and a step that
    is due in `held_s`."""
    engine = Engine(tokenizer, "LlamaForCausalLM", num_blocks=24, clock=time.monotonic)
    for descriptor in (engine.clients.arrivals, engine.executor.results):
        os.eventfd_read(descriptor)
    engine.core._next_check = time.monotonic() + 60
    engine.core._held_until = time.monotonic() + held_s
    return engine


@pytest.mark.parametrize("seconds", [0.3e-3, 2.5e-3])
def test_the_loop_wakes_when_a_held_step_is_due(word_tokenizer, seconds: float) -> None:
    core = quiet_engine(word_tokenizer, seconds).core
    core._wait()
    assert 0 <= time.monotonic() - core._held_until < 10


@pytest.mark.parametrize("source", ["clients", "executor"])
def test_the_loop_wakes_for_what_arrives_before(word_tokenizer, source: str) -> None:
    engine = quiet_engine(word_tokenizer, 50)
    descriptors = {"clients": engine.clients.arrivals, "executor": engine.executor.results}
    started = time.monotonic()
    arrival = threading.Timer(5e-3, os.eventfd_write, (descriptors[source], 1))
    arrival.start()
    engine.core._wait()
    assert 5e-3 <= time.monotonic() - started < 10
    arrival.join()


def step_input(number: int, rows: int, tokens: int = 0) -> EncodeStep:
    return EncodeStep(step=number, tokens=bytes(4 * (tokens or rows)), query_lens=bytes(4 * rows))


def test_an_unknown_kind_of_step_holds_nothing_up() -> None:
    pacer = Pacer()
    pacer.step_submitted(step_input(0, 4), 10.0)
    assert pacer.due(0) < 10.0
    pacer.step_finished(StepTimes(), 10.5)
    pacer.step_submitted(step_input(1, 4), 11.0)
    assert 11.4 < pacer.due(0) < 11.5
    pacer.step_finished(StepTimes(), 11.5)
    pacer.step_submitted(step_input(2, 8), 12.0)
    assert pacer.due(0) < 12.0


def test_the_margin_stays_where_idle_time_is_not_measured() -> None:
    margins = {}
    for idle_us in (-1, 0, 300):
        pacer = Pacer()
        now = 0.0
        pacer.step_submitted(step_input(0, 4), now)
        for number in range(1, 40):
            pacer.may_wait(now, 0)
            pacer.step_submitted(step_input(number, 4), max(now, pacer.due(0)))
            now += STEP
            pacer.step_finished(StepTimes(idle_us=idle_us), now)
        margins[idle_us] = now + STEP - max(idle_us, 0) / 1e6 - pacer.due(0)
    assert margins[-1] == pytest.approx(1e-3, abs=1e-9)
    assert margins[0] < margins[-1] < margins[300]


def test_a_step_for_which_many_prompts_wait_is_begun_earlier() -> None:
    """By the least time that a prompt has lately taken, beyond that of a step without new ones."""
    pacer = Pacer()
    for number in range(2):
        pacer.step_submitted(step_input(number, 4), 10.0 + number)
        pacer.step_finished(StepTimes(), 10.5 + number)
    pacer.step_submitted(step_input(2, 4), 12.0)
    before = pacer.due(100)
    for prompts, seconds in [(0, 0.5e-3), (50, 10.5e-3)] * 8:
        pacer.may_wait(20.0, prompts)
        pacer.step_made(20.0 + seconds, 0)
    assert before - pacer.due(100) == pytest.approx(20e-3)
    assert pacer.due(0) == before
    pacer.may_wait(20.0, 1)
    pacer.step_made(20.0 + 0.4e-3, 0)
    assert pacer.due(100) == before
