"""What a core counts of its steps and stages, and the traces that it sends whoever asks."""

from collections.abc import Callable

import msgspec
import pytest

from engine_core.loop.admission import InFlight
from engine_core.loop.reports import Statistics, StepWork, Tracer
from engine_core.messages import (
    Beat,
    EncodeJob,
    GenerateJob,
    Hello,
    SamplingParams,
    Trace,
    TracedStep,
    TracedSteps,
    Usage,
)
from engine_core.tokenization.tokenizer import Tokenizer
from tests.engine_core.fake_transport import Engine
from tests.engine_core.simulated_model import ids
from workers.contract.messages import EncodeStep, StepTimes

A, B = b"client-a", b"client-b"


def step(number: int) -> EncodeStep:
    return EncodeStep(step=number, tokens=bytes(4), query_lens=bytes(4))


def times(start_us: int) -> StepTimes:
    return StepTimes(start_us=start_us, wait_us=10, busy_us=200, transfer_us=5)


def statistics_of(
    num_stages: int,
    now: float = 0.0,
    observe: Callable[[StepWork, float], None] = lambda *_: None,
) -> Statistics:
    return Statistics(num_stages, now, Tracer(), observe, {})


def beat(statistics: Statistics, now: float = 0.0, in_flight: tuple[float, ...] = ()) -> Beat:
    usage, admitted = Usage(running=0, waiting=0), InFlight(jobs=2, rows=3, tokens=4)
    return statistics.beat(
        usage, admitted, now, in_flight=in_flight, expected_wait_s=0.0, restarts=0, loss=None
    )


def test_a_heartbeat_says_what_is_in_flight_and_the_last_steps_age() -> None:
    statistics = statistics_of(1, 5.0)
    found = beat(statistics, 9.0, (2.0, 5.0))
    assert (found.steps_in_flight, found.stalled_s, found.last_step_age_s) == (2, 7.0, 4.0)
    assert (found.admitted_rows, found.admitted_tokens) == (3, 4)
    statistics.step_finished(10.0)
    assert beat(statistics, 10.5).last_step_age_s == 0.5


def test_each_stages_times_are_summed_up() -> None:
    statistics = statistics_of(2)
    for number in range(3):
        statistics.step_submitted(step(number), StepWork(7 + number))
    for number in range(3):
        statistics.step_reported(0, number, times(1000 + 215 * number))
    statistics.step_reported(1, 0, times(1300))
    statistics.step_reported(1, 1, times(1300 + 215 + 40))
    found = [pytest.approx(msgspec.structs.astuple(stage)) for stage in beat(statistics).stages]
    assert found == [(600e-6, 30e-6, 15e-6, 0.0), (400e-6, 20e-6, 10e-6, 40e-6)]
    assert (beat(statistics).steps, beat(statistics).step_tokens) == (3, 24)


def test_the_slowest_stages_time_of_each_step_is_observed() -> None:
    slowest: list[tuple[StepWork, float]] = []
    statistics = statistics_of(2, observe=lambda *observed: slowest.append(observed))
    for number in range(2):
        statistics.step_submitted(step(number), StepWork(7 + number))
    statistics.step_reported(1, 0, StepTimes(busy_us=300))
    assert not slowest, "a stage has yet to report"
    statistics.step_reported(0, 0, StepTimes(busy_us=400, wait_us=900))
    statistics.step_reported(0, 1, StepTimes(busy_us=100))
    statistics.step_reported(1, 1, StepTimes(busy_us=200))
    assert slowest == [(StepWork(7), 400e-6), (StepWork(8), 200e-6)]


@pytest.mark.parametrize(
    ("starts", "drained", "idle_us"), [((1000, 900_000), True, 0), ((1000, 2000), False, 785)]
)
def test_a_stage_is_idle_between_steps_while_there_are_requests(starts, drained, idle_us) -> None:
    statistics = statistics_of(1)
    for number, start in enumerate(starts):
        statistics.step_submitted(step(number), StepWork(1))
        statistics.step_reported(0, number, times(start))
        if drained:
            statistics.drained()
    assert beat(statistics).stages[0].idle_s == pytest.approx(idle_us / 1e6)


def pipeline(tokenizer: Tokenizer, architecture: str = "LlamaForCausalLM") -> Engine:
    blocks = 24 if architecture == "LlamaForCausalLM" else 0
    return Engine(tokenizer, architecture, blocks, num_stages=3, max_model_len=64)


def generate(engine: Engine) -> None:
    """Four tokens after a prompt of five: one after another but the last is an input, too."""
    job = GenerateJob(1, params=SamplingParams(max_tokens=4), ids=[ids(*range(3, 8))])
    engine.clients.put(b"other", job)


def test_a_beat_counts_what_every_stage_of_a_pipeline_reported(word_tokenizer: Tokenizer) -> None:
    engine = pipeline(word_tokenizer)
    engine.clients.put(A, Hello())
    generate(engine)

    def counted() -> Beat | None:
        found = [beat for beat in engine.clients.beats(A) if isinstance(beat, Beat)]
        return found[-1] if found and found[-1].last_step_age_s > 0.5 else None

    engine.iterate_until(counted)
    beat = counted()
    assert beat is not None
    assert beat.step_tokens == 5 + 3
    assert beat.steps_in_flight == 0
    assert 0.9 < beat.last_step_age_s < 1.0
    busy = [beat.steps * (1000 + stage) / 1e6 for stage in range(3)]
    assert [stage.busy_s for stage in beat.stages] == pytest.approx(busy)


def traced(engine: Engine, client: bytes) -> list[TracedStep]:
    """The steps that a client gets until its trace is over."""

    def messages() -> list[TracedSteps]:
        return [m for m in engine.clients.sent.get(client, []) if isinstance(m, TracedSteps)]

    engine.iterate_until(lambda: any(message.over for message in messages()))
    return [step for message in messages() for step in message.steps]


@pytest.mark.parametrize(
    ("architecture", "counts"),
    [
        ("LlamaForCausalLM", [(1, 5, 5, 5), (1, 1, 0, 6), (1, 1, 0, 7), (1, 1, 0, 8)]),
        ("BertModel", [(2, 5, 5, 5)]),
    ],
)
def test_every_step_with_its_rows_and_the_times_of_every_stage(
    word_tokenizer: Tokenizer, architecture: str, counts: list[tuple[int, ...]]
) -> None:
    """All tokens of an encoder are prompt tokens."""
    engine = pipeline(word_tokenizer, architecture)
    engine.clients.put(A, Trace(1.0))
    if architecture == "BertModel":
        engine.clients.put(b"other", EncodeJob(1, ids=[ids(7), ids(7, 7, 7, 7)]))
    else:
        generate(engine)
    steps = traced(engine, A)
    assert [step.step for step in steps] == list(range(len(counts)))
    assert [(s.rows, s.tokens, s.prompt_tokens, s.context_tokens) for s in steps] == counts
    for step in steps:
        assert [times.busy_us for times in step.times] == [1000, 1001, 1002]


def test_a_trace_ends_after_its_seconds_and_another_goes_on(word_tokenizer: Tokenizer) -> None:
    engine = pipeline(word_tokenizer)
    engine.clients.put(A, Trace(0.5))
    engine.clients.put(B, Trace(1.5))
    assert traced(engine, A) == []
    generate(engine)
    assert len(traced(engine, B)) == 4, "it was not over with the other"
    assert traced(engine, A) == []
    assert not engine.core._tracer._steps


def test_a_client_that_is_gone_is_traced_no_longer(word_tokenizer: Tokenizer) -> None:
    engine = pipeline(word_tokenizer)
    engine.clients.put(A, Trace(60.0))
    engine.clients.put(B, Trace(0.5))
    engine.clients.gone.add(A)
    traced(engine, B)
    generate(engine)
    engine.iterate_until(lambda: engine.clients.outputs(b"other") and not engine.core._jobs)
    assert engine.core._tracer._steps == []


def test_nothing_is_kept_for_nobody() -> None:
    tracer = Tracer()
    tracer.record(step(0), [StepTimes()], continued=False)
    tracer.start(A, 5.0, now=1.0)
    tracer.record(step(1), [StepTimes()], continued=False)
    ((client, message),) = tracer.take(2.0)
    assert (client, [step.step for step in message.steps]) == (A, [1])
    tracer.forget(A)
    tracer.record(step(2), [StepTimes()], continued=False)
    assert list(tracer.take(3.0)) == []
    assert tracer._steps == []


def test_seconds_and_steps_are_bounded() -> None:
    tracer = Tracer()
    tracer.start(A, 1e9, now=0.0)
    for number in range(10_050):
        tracer.record(step(number), [StepTimes()], continued=False)
    ((_, first),) = tracer.take(1.0)
    assert len(first.steps) == 10_000
    assert not first.over
    ((_, last),) = tracer.take(60.0)
    assert last == TracedSteps([], over=True)
