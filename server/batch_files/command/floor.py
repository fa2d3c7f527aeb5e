"""What of a job's time its matrix products alone would take: the least that the GPU leaves."""

from collections.abc import Sequence

from server.bench.results.machine import gpu_names
from server.settings.settings import ServedModel
from workers.contract.model_config import ModelConfig

_FLOPS = {"H200": 650e12}
"""Measured rates of large bf16 products, by what a GPU's name contains. Others are not known."""


def floor_seconds(models: Sequence[ServedModel], computed: int, sampled: int) -> float | None:
    """The time of the matrix products of so many tokens on the GPUs of their engine: `computed`
    are those of prompts that were not saved, and the `sampled` ones. Attention comes on top.

    None where it is not known: no generator alone, on GPUs that have been measured, in 16 bits.
    """
    if len(models) != 1:
        return None
    execution = models[0].execution
    known = execution.task == "generate" and execution.device_type == "cuda"
    if not known or execution.dtype == "float32":
        return None
    gpus = gpu_names()
    rates = [rate for name, rate in _FLOPS.items() if all(name in gpu for gpu in gpus)]
    if not rates or not gpus:
        return None
    return 2 * products(execution.model, computed, sampled) / (rates[0] * execution.num_stages)


def products(model: ModelConfig, computed: int, sampled: int) -> float:
    """Multiplications of the layers for each token that is computed, of the head for each that is
    sampled."""
    heads = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim
    layers = model.num_layers * model.hidden_size * (heads + 3 * model.intermediate_size)
    return layers * computed + model.vocab_size * model.hidden_size * sampled
