"""Measured times carried over to other models and GPUs."""

import pytest

from benchmarks.pipeline.gpus import GPUS, scaled
from benchmarks.pipeline.step_times import GPUName, read_step_times
from engine_core.loop.reports import StepWork
from server.bench.dummy_models import parse_shape
from workers.contract.checkpoint.checkpoint_config import read_model_config

TIMES = read_step_times()
SMALL, LARGE = (read_model_config(parse_shape(shape)) for shape in ("llama8b", "llama405b"))
DECODES, PROMPTS = StepWork(1), StepWork(16_384)


def test_the_measured_model_on_the_measured_gpu_keeps_its_times() -> None:
    same = scaled(TIMES, SMALL, SMALL, TIMES.gpu)
    assert dict(same.layers_ms) == pytest.approx(dict(TIMES.layers_ms))
    assert dict(same.head_ms) == pytest.approx(dict(TIMES.head_ms))
    assert same.attended_ms == TIMES.attended_ms
    assert same.context_ms == TIMES.context_ms


def test_a_larger_layer_takes_time_by_its_weights_and_heads() -> None:
    times = scaled(TIMES, SMALL, LARGE, TIMES.gpu)
    # Weights of a layer: 3.19e9 and 0.218e9. Heads: 128 and 32, of which 8 have keys and values.
    for work in (DECODES, PROMPTS):
        assert times.layer(work) / TIMES.layer(work) == pytest.approx(14.62, rel=0.01)
    assert times.attended_ms / TIMES.attended_ms == pytest.approx(4 * 126 / 32)
    assert times.context_ms / TIMES.context_ms == pytest.approx(126 / 32)
    assert times.head(64) / TIMES.head(64) == pytest.approx(4)


@pytest.mark.parametrize("gpu", GPUS)
def test_reading_goes_by_bandwidth_and_products_by_arithmetic(gpu: GPUName) -> None:
    times, old, new = scaled(TIMES, SMALL, SMALL, gpu), GPUS[TIMES.gpu], GPUS[gpu]
    bandwidth, arithmetic = old.bandwidth / new.bandwidth, old.arithmetic / new.arithmetic
    assert times.layer(DECODES) / TIMES.layer(DECODES) == pytest.approx(bandwidth)
    assert times.context_ms / TIMES.context_ms == pytest.approx(bandwidth)
    assert times.layer(PROMPTS) / TIMES.layer(PROMPTS) == pytest.approx(arithmetic)
    assert times.attended_ms / TIMES.attended_ms == pytest.approx(arithmetic)
