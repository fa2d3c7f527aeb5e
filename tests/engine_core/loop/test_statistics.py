"""What a core counts of its steps and stages."""

from collections.abc import Callable

from engine_core.loop.admission import InFlight
from engine_core.loop.reports import Statistics, StepWork, Tracer
from engine_core.messages import Beat, GenerateJob, Hello, SamplingParams, StageTime, Usage
from engine_core.tokenization.tokenizer import Tokenizer
from tests.engine_core.fake_transport import Engine
from workers.contract.messages import EncodeStep, StepTimes


def step(number: int) -> EncodeStep:
    return EncodeStep(step=number, tokens=bytes(4), query_lens=bytes(4))


def statistics_of(
    num_stages: int,
    now: float = 0.0,
    observe: Callable[[StepWork, float], None] = lambda *_: None,
) -> Statistics:
    return Statistics(num_stages, now, Tracer(), observe)


def times(start_us: int) -> StepTimes:
    return StepTimes(start_us=start_us, wait_us=10, busy_us=200, transfer_us=5)


def beat(statistics: Statistics, now: float = 0.0) -> Beat:
    usage = Usage(running=0, waiting=0)
    admitted = InFlight(rows=3, tokens=4)
    return statistics.beat(usage, admitted, now, in_flight=[], expected_wait_s=0.0)


def test_a_heartbeat_says_what_is_in_flight() -> None:
    admitted = InFlight(jobs=2, rows=3, tokens=4)
    found = statistics_of(1).beat(
        Usage(running=0, waiting=0), admitted, 9.0, in_flight=[2.0, 5.0], expected_wait_s=0.0
    )
    assert (found.steps_in_flight, found.stalled_s) == (2, 7.0)
    assert (found.admitted_rows, found.admitted_tokens) == (3, 4)


def test_each_stages_times_are_summed_up() -> None:
    statistics = statistics_of(2)
    for number in range(3):
        statistics.step_submitted(step(number), StepWork(7 + number))
    for number in range(3):
        statistics.step_reported(0, number, times(1000 + 215 * number))
    statistics.step_reported(1, 0, times(1300))
    statistics.step_reported(1, 1, times(1300 + 215 + 40))
    assert beat(statistics).stages == [
        StageTime(busy_s=600e-6, waiting_s=30e-6, transfer_s=15e-6, idle_s=0.0),
        StageTime(busy_s=400e-6, waiting_s=20e-6, transfer_s=10e-6, idle_s=40e-6),
    ]
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


def test_a_stage_without_requests_is_not_idle() -> None:
    statistics = statistics_of(1)
    for number, start in enumerate((1000, 900_000)):
        statistics.step_submitted(step(number), StepWork(1))
        statistics.step_reported(0, number, times(start))
        statistics.drained()
    assert beat(statistics).stages[0].idle_s == 0.0


def test_a_stage_with_requests_is_idle_between_steps_one_at_a_time() -> None:
    statistics = statistics_of(1)
    for number, start in enumerate((1000, 2000)):
        statistics.step_submitted(step(number), StepWork(1))
        statistics.step_reported(0, number, times(start))
    assert beat(statistics).stages[0].idle_s == (2000 - 1215) / 1e6


def test_the_last_steps_age() -> None:
    statistics = statistics_of(1, 5.0)
    assert beat(statistics, 7.0).last_step_age_s == 2.0
    statistics.step_finished(8.0)
    assert beat(statistics, 8.5).last_step_age_s == 0.5


def test_a_beat_counts_what_every_stage_of_a_pipeline_reported(word_tokenizer: Tokenizer) -> None:
    engine = Engine(word_tokenizer, "LlamaForCausalLM", 24, num_stages=3, max_model_len=64)
    engine.clients.put(b"a", Hello())
    params = SamplingParams(max_tokens=4)
    engine.clients.put(b"a", GenerateJob(1, params=params, ids=[bytes(4 * 5)]))

    def counted() -> Beat | None:
        found = [beat for beat in engine.clients.beats(b"a") if isinstance(beat, Beat)]
        return found[-1] if found and found[-1].last_step_age_s > 0.5 else None

    engine.iterate_until(counted)
    beat = counted()
    assert beat is not None
    # A prompt of five tokens, then one after another but the last, which is never an input.
    assert beat.step_tokens == 5 + 3
    assert beat.steps_in_flight == 0
    assert 0.9 < beat.last_step_age_s < 1.0
    assert [stage.busy_s for stage in beat.stages] == [
        beat.steps * (1000 + stage) / 1e6 for stage in range(3)
    ]
