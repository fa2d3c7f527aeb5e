"""GPUs by their data sheets, and measured step times carried over to another model or GPU."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from benchmarks.pipeline.step_times import GPUName, StepTimes
from engine_core.schedulers.cost_model import starting_coefficients
from workers.contract.model_config import ModelConfig


class GPU(NamedTuple):
    """Memory in GiB as CUDA reports it, its bandwidth in TB/s, dense bf16 arithmetic in TFLOP/s."""

    memory: float
    bandwidth: float
    arithmetic: float


GPUS: dict[GPUName, GPU] = {
    "h200": GPU(139.8, 4.8, 989),
    "h100": GPU(79.1, 3.35, 989),
    "a100": GPU(79.2, 2.04, 312),
}


def scaled(times: StepTimes, measured: ModelConfig, model: ModelConfig, gpu: GPUName) -> StepTimes:
    """The times of the `measured` model, for another `model` and `gpu`.

    What is read (weights, keys and values) takes time by its bytes and the memory's bandwidth; what
    is multiplied by its operations and the arithmetic's rate. What a GPU reaches of these stays.
    """
    ratios = zip(starting_coefficients(model), starting_coefficients(measured), strict=True)
    step, token, attended, context = (new / old for new, old in ratios)
    reads = GPUS[times.gpu].bandwidth / GPUS[gpu].bandwidth
    products = GPUS[times.gpu].arithmetic / GPUS[gpu].arithmetic
    hidden = model.hidden_size / measured.hidden_size
    head = hidden * model.vocab_size / measured.vocab_size
    return msgspec.structs.replace(
        times,
        gpu=gpu,
        num_layers=model.num_layers,
        layers_ms=_scaled_table(times.layers_ms, step * reads, token * products),
        attended_ms=times.attended_ms * attended * products,
        context_ms=times.context_ms * context * reads,
        head_ms=_scaled_table(times.head_ms, head * reads, head * products),
        hop_token_ms=times.hop_token_ms * hidden,
    )


def _scaled_table(
    table: Sequence[tuple[float, float]], reads: float, products: float
) -> list[tuple[float, float]]:
    """The table with its roofline moved: the first entry is all reading, the last all products. How
    far an entry lies above the roofline stays."""
    reading, (most, time) = table[0][1], table[-1]
    product = time / most
    return [
        (n, ms * max(reading * reads, n * product * products) / max(reading, n * product))
        for n, ms in table
    ]
