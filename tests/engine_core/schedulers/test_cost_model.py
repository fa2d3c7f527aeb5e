"""What a step costs, learnt from noisy times of real loads."""

import random
from collections.abc import Iterator

import pytest

from engine_core.loop.reports import StepWork
from engine_core.schedulers.cost_model import Coefficients, CostModel, starting_coefficients
from tests.engine_core.configs import LLAMA_8B

START = starting_coefficients(LLAMA_8B)
TRUTH = Coefficients(step=8e-3, token=5e-5, attended=4e-9, context=2e-8)
SLOW = Coefficients(*(100_000 * each for each in TRUTH))
"""As slow beside `START` as a CPU is with a model of a few million weights."""


def seconds(work: StepWork, truth: Coefficients = TRUTH) -> float:
    return CostModel(truth).seconds(work)


def mixed_steps(count: int, rng: random.Random) -> Iterator[StepWork]:
    for _ in range(count):
        rows = rng.randrange(1, 512)
        contexts = rows * rng.randrange(100, 2000)
        chunk, start = rng.randrange(4000) * rng.randrange(2), rng.randrange(16_000)
        yield StepWork(rows + chunk, chunk * (start + chunk / 2), contexts)


def fitted(
    count: int, noise: float = 0.0, outliers: float = 0.0, truth: Coefficients = TRUTH
) -> CostModel:
    rng = random.Random(1)
    model = CostModel(START)
    for work in mixed_steps(count, rng):
        factor = max(0.1, rng.gauss(1.0, noise)) * (10 if rng.random() < outliers else 1)
        model.observe(work, seconds(work, truth) * factor)
    return model


def test_before_any_step_the_parts_compare_as_on_a_gpu() -> None:
    """16,000 tokens into a prompt a token takes about 1.6 times as long as at its start, and a step
    of one token reads all weights."""
    assert START.attended * 16_000 / START.token == pytest.approx(0.6, rel=0.1)
    assert CostModel(START).seconds(StepWork(1)) == pytest.approx(3.5e-3, rel=0.1)


@pytest.mark.parametrize("truth", [TRUTH, SLOW], ids=["as expected", "far slower"])
@pytest.mark.parametrize(
    ("count", "noise", "outliers", "tolerance"),
    [(60, 0.0, 0.0, 0.01), (400, 0.05, 0.0, 0.1), (400, 0.05, 0.05, 0.1)],
)
def test_coefficients_are_found_and_noise_and_outliers_do_little(
    count: int, noise: float, outliers: float, tolerance: float, truth: Coefficients
) -> None:
    model = fitted(count, noise, outliers, truth)
    assert model.coefficients == pytest.approx(truth, rel=tolerance)


def test_one_kind_of_step_says_nothing_about_the_others() -> None:
    """After hours of decoding a prompt still costs what it did, and never nothing."""
    model = fitted(200)
    before = model.chunk_seconds(8000, 1000)
    rng = random.Random(2)
    for number in range(5000):
        work = StepWork(256, 0.0, 256 * (300 + number % 500))
        model.observe(work, seconds(work) * rng.gauss(1.0, 0.03))
    assert model.chunk_seconds(8000, 1000) == pytest.approx(before, rel=0.1)
    decode = StepWork(256, 0.0, 256 * 500)
    assert model.seconds(decode) == pytest.approx(seconds(decode), rel=0.02)


def test_constant_times_leave_no_coefficient_below_zero() -> None:
    model = CostModel(START)
    for work in mixed_steps(300, random.Random(3)):
        model.observe(work, 0.01)
    assert all(coefficient > 0 for coefficient in model.coefficients)
    assert model.coefficients.step == pytest.approx(0.01, rel=0.2)


def test_a_change_of_speed_is_followed() -> None:
    model = fitted(300, noise=0.02)
    for work in mixed_steps(1200, random.Random(4)):
        model.observe(work, 3 * seconds(work))
    for work in mixed_steps(20, random.Random(5)):
        assert model.seconds(work) == pytest.approx(3 * seconds(work), rel=0.1)


@pytest.mark.parametrize("start", [0, 500, 16_000, 100_000])
@pytest.mark.parametrize("length", [1, 64, 512, 8000])
def test_a_chunk_of_given_time_has_the_length_that_takes_it(start: int, length: int) -> None:
    model = CostModel(TRUTH)
    spent = model.chunk_seconds(start, length)
    assert model.chunk_length(start, spent) in {length - 1, length}
    step = model.seconds(StepWork(length, length * (start + length / 2)))
    assert step - model.seconds(StepWork(0)) == pytest.approx(spent)
