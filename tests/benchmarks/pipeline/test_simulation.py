"""The scheduler over a pipeline of simulated stages, with the times of an 8B Llama on H200s."""

from itertools import pairwise

import msgspec
import pytest

from benchmarks.pipeline.loads import CASES, Load, load
from benchmarks.pipeline.simulation import Run, SimulatedEngine, SimulatedStep
from benchmarks.pipeline.stages import Link, Pipeline
from benchmarks.pipeline.step_times import StepTimes, read_step_times
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.cost_model import CostModel
from engine_core.schedulers.decoder import DecoderScheduler
from tests.engine_core.configs import execution_config

TIMES = read_step_times()
NO_HEAD = msgspec.structs.replace(TIMES, head_ms=[(1, 0.0)])
LAYERS = {1: (32,), 2: (16, 16), 4: (8,) * 4}
BLOCKS = 8000
NO_LINK = Link(0.0, 0.0)


def pipeline(
    stages: int, times: StepTimes = TIMES, link: Link = NO_LINK, hosts: int = 1
) -> Pipeline:
    """Stages divided evenly over hosts."""
    places = [stage * hosts // stages for stage in range(stages)]
    return Pipeline([times] * stages, LAYERS[stages], places, link)


def cost_model(stages: int) -> CostModel:
    """What the scheduler of so many stages has learnt, frozen."""
    return CostModel(pipeline(stages).coefficients())


def simulated(
    stages: int,
    requests: list[Load],
    times: StepTimes = TIMES,
    *,
    ahead: int = 1,
    jitter: float = 0.0,
    learner: CostModel | None = None,
    link: Link = NO_LINK,
    hosts: int = 1,
) -> Run:
    config = execution_config(
        devices=tuple(f"cuda:{stage}" for stage in range(stages)),
        max_running=1024,
        max_step_tokens=8448,
        block_size=128,
        steps_ahead=ahead,
    )
    costs = learner or cost_model(stages)
    scheduler = DecoderScheduler(config, BLOCKS * stages, cost_model=costs)
    stages_of = pipeline(stages, times, link, hosts)
    engine = SimulatedEngine(scheduler, stages_of, jitter=jitter, learns=learner is not None)
    return engine.run(requests)


def prompt_chunks(run: Run) -> dict[int, list[int]]:
    """The lengths of each request's chunks, in order."""
    chunks: dict[int, list[int]] = {}
    for step in run.steps:
        batch, decodes = step.batch, step.batch.num_decodes
        for request, length in zip(batch.requests[decodes:], batch.lens[decodes:], strict=True):
            chunks.setdefault(request.job.message.id, []).append(length)
    return chunks


def best_equal_time_cut(stages: int, prompt: int) -> float:
    """Seconds to the first token with the best number of chunks of equal time, nothing between."""
    costs = cost_model(stages)
    whole = costs.chunk_seconds(0, prompt)
    return min(_flow(costs, stages, prompt, whole / count) for count in range(1, 129))


def _flow(costs: CostModel, stages: int, prompt: int, seconds: float) -> float:
    free, start = [0.0] * stages, 0
    while start < prompt:
        length = max(1, min(costs.chunk_length(start, seconds), prompt - start))
        ready = 0.0
        for stage in range(stages):
            busy = costs.coefficients.step + costs.chunk_seconds(start, length)
            ready = free[stage] = max(ready, free[stage]) + busy
        start += length
    return free[-1]


@pytest.mark.parametrize("stages", [2, 4])
def test_a_long_prompt_takes_hardly_longer_than_in_the_best_chunks(stages: int) -> None:
    run = simulated(stages, load(CASES["long32k"]))
    assert run.seconds <= 1.1 * best_equal_time_cut(stages, 32_000)
    (chunks,) = prompt_chunks(run).values()
    assert sum(chunks) == 32_000
    whole = chunks[:-1]
    assert whole == sorted(whole, reverse=True), "the longer the prefix, the shorter the chunk"
    assert not any(chunk % 256 for chunk in whole), "its products are full"


@pytest.mark.parametrize("stages", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_skewed_load_leaves_few_bubbles(stages: int) -> None:
    """Half of the skewed load, over stages that are equal but for chance, and for the last layer,
    which spares most of a prompt."""
    requests = load(CASES["skew"], 0.5)
    for jitter in (0.0, 0.02):
        assert max(simulated(stages, requests, NO_HEAD, jitter=jitter).bubbles()[:-1]) <= 0.05
    # With the LM head the last stage has more to do than the others; it hardly waits.
    assert simulated(stages, requests).bubbles()[-1] <= 0.05


def test_a_scheduler_that_starts_from_wrong_costs_learns_them() -> None:
    """Ten times too slow, and attention as good as free."""
    true = cost_model(4).coefficients
    wrong = CostModel(true._replace(token=10 * true.token, attended=true.attended / 100))
    run = simulated(4, load(CASES["skew"], 0.5), NO_HEAD, jitter=0.02, learner=wrong)
    assert max(run.bubbles()[:-1]) <= 0.06
    assert wrong.chunk_seconds(8000, 512) == pytest.approx(
        cost_model(4).chunk_seconds(8000, 512), rel=0.15
    )


def test_without_steps_ahead_there_are_more_bubbles() -> None:
    """The control of the test above, and what `steps_ahead` is for."""
    requests = load(CASES["dec"], 0.25)
    ahead, after = (simulated(4, requests, NO_HEAD, ahead=n).bubbles() for n in (1, 0))
    assert max(ahead) <= 0.05
    assert min(after) >= 0.1


@pytest.mark.parametrize("stages", [2, 4])
def test_decode_steps_read_the_weights_for_as_many_rows_as_possible(stages: int) -> None:
    run = simulated(stages, load(CASES["dec"], 0.5))
    steady = run.steps[len(run.steps) // 4 : -len(run.steps) // 4]
    assert {step.batch.num_decodes for step in steady} == {128 // stages}
    assert {step.depth for step in steady} == {stages + 1}


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("name", ["rand", "skew"])
def test_no_chunk_but_a_prompts_last_is_short(stages: int, name: str) -> None:
    for chunks in prompt_chunks(simulated(stages, load(CASES[name], 0.125))).values():
        assert all(length >= 512 for length in chunks[:-1])


def test_one_stage_takes_all_that_fits() -> None:
    run = simulated(1, load(CASES["long32k"]))
    assert [step.batch.num_tokens for step in run.steps] == [8448, 8448, 8448, 6656]


def test_a_stage_that_is_never_idle_has_no_bubbles() -> None:
    """Though the sum of these times is larger than their whole, for rounding."""
    batch = DecodeBatch(0)
    times = [(0.1, 0.8), (0.8, 1.2), (1.2, 1.9)]
    run = Run(1.9, [SimulatedStep(batch, 1, [time]) for time in times])
    assert f"{run.bubbles()[0]:.1%}" == "0.0%"


def test_between_hosts_each_token_takes_the_way_there_and_back() -> None:
    requests = [Load(128, 64)]
    near = simulated(2, requests).next_token()
    far = simulated(2, requests, link=Link(0.01, 0.001), hosts=2).next_token()
    assert far - near == pytest.approx(0.021 - TIMES.hop_ms / 1e3, abs=1e-4)


def test_a_transfer_between_hosts_takes_both_stages_and_waits_for_the_receiver() -> None:
    link = Link(0.005, 0.0)
    steps = simulated(2, load(CASES["dec"], 0.25), NO_HEAD, link=link, hosts=2).steps
    for step, following in pairwise(steps):
        (_, sent), (received, done) = step.stages
        assert received >= sent + link.latency
        assert following.stages[0][0] >= received - 1e-9, "the sender's stream waits"
        (_, ready), (begin, _) = following.stages
        assert begin >= max(ready, done) + link.latency - 1e-9, "so does the receiver's"


def test_inside_a_host_a_link_to_others_costs_nothing() -> None:
    requests = load(CASES["rand"], 0.05)
    slow = simulated(2, requests, link=Link(1.0, 1.0))
    assert slow.seconds == simulated(2, requests).seconds


def test_a_request_begins_when_it_arrives() -> None:
    requests = [Load(512, 8), Load(512, 8, arrival=5.0)]
    run = simulated(1, requests)
    assert 5.0 < run.seconds < 5.5
    first, second = run.answers
    assert second.first - 5.0 == pytest.approx(first.first, rel=1e-6)
    assert [answer.tokens for answer in run.answers] == [8, 8]


def test_requests_at_a_rate_arrive_by_chance_and_so_many_a_second() -> None:
    arrivals = [request.arrival for request in load(CASES["rand"], rate=50.0)]
    assert arrivals == sorted(arrivals)
    assert len(arrivals) / arrivals[-1] == pytest.approx(50.0, rel=0.1)
    assert {request.arrival for request in load(CASES["rand"])} == {0.0}
