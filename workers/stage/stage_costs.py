"""Costs of the parts of a model on a stage's device, by which its layers are divided
(`engine_core/executor/partition.py`). They are timed before any weights are loaded, by one stage
for all on equal devices.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch

from workers.attention.base import AttentionBackend
from workers.attention.stage_attention import StepAttention
from workers.contract.config import Device, ExecutionConfig, WorkerConfig
from workers.contract.messages import DecodeStep
from workers.contract.share import PartCosts, Share, StageCosts
from workers.contract.token_sampling import TokenSampling
from workers.device.timing import Stopwatch
from workers.layers.layer import Placement
from workers.models.base import StageModel, forward, model_class, run_layer
from workers.stage.model_runner import (
    EncodeRunner,
    blocks_of,
    step_of_rows,
    step_of_texts,
)
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep
from workers.step.rows import IntArray
from workers.weights.loader import LoadedModel, held_bytes, outline, with_names

LEAST_LAYER_WEIGHTS = 1 << 20
"""A layer with fewer weights takes as long as it takes to launch it, on any device."""

MOST_CPU_WEIGHTS = 1 << 27
"""A CPU would take seconds to make up more than this for a layer and the head."""

DECODE_ROWS, DECODE_CONTEXT = 64, 256
"""The most rows of the decode step that is timed, and the most tokens of each one's context."""

PROMPT_TOKENS: dict[Device, int] = {"cpu": 64, "cuda": 2048}
"""The most tokens of the step of prompts."""

PROMPT_LEN = 512
"""The most tokens of one of its prompts."""

_logger = logging.getLogger(__name__)


def measured_costs(worker: WorkerConfig, backends: Sequence[AttentionBackend]) -> StageCosts | None:
    """Time a layer of each kind with random weights, the embedding and the head on the stage's
    device. A layer of any kind costs what the layers do on average.

    None for layers that are too small, and on a CPU for those that are too large.
    """
    execution = worker.execution
    placement = with_names(execution, Placement.of(worker))
    on_cpu, sizes = execution.device_type == "cpu", _part_sizes(execution, _numbers)
    layer_weights, _, head_weights = sizes
    too_large = on_cpu and layer_weights + head_weights > MOST_CPU_WEIGHTS
    if layer_weights < LEAST_LAYER_WEIGHTS or too_large:
        return None
    measure = partial(_measured, worker, placement, backends)
    labels = [backend.label for backend in backends]
    device, shape = placement.device, execution.shape
    return placement.choices.get("layers", StageCosts, measure, device, labels, shape)


def _measured(
    worker: WorkerConfig,
    placement: Placement,
    backends: Sequence[AttentionBackend],
    watch: Stopwatch,
) -> StageCosts:
    execution, cached = worker.execution, worker.execution.model.has_kv_cache
    measure, kinds = _decoder_seconds if cached else _encoder_seconds, _kinds(execution)

    def seconds(layer: int) -> tuple[list[float], list[float]]:
        loaded = LoadedModel(_made_up_model(execution, placement, layer), 0, 0.0)
        return measure(worker, loaded, backends, watch)

    found = np.array([seconds(layer) for layer in kinds])
    decode, prompts = np.average(found, axis=0, weights=[*kinds.values()]).tolist()
    sizes = _part_sizes(execution, partial(held_bytes, execution))
    layer, embedding, head = map(PartCosts, decode, prompts, sizes)
    _logger.info("measured what each part of the model costs")
    return StageCosts(layer, embedding, head, execution.kv_plane_bytes if cached else 0)


def _kinds(execution: ExecutionConfig) -> dict[int, int]:
    """The first layer of each kind, which keeps keys and values, and how many are of it. Those with
    experts are other kinds than those without."""
    model = execution.model
    dense = () if model.experts is None else model.experts.dense_layers
    kinds = [(kind, layer in dense) for layer, kind in enumerate(model.layer_kinds)]
    return {kinds.index(kind): count for kind, count in Counter(kinds).items()}


def _seconds(
    model: StageModel,
    step: PagedStep | PackedStep,
    attention: StepAttention,
    head: Callable[[torch.Tensor], object],
    watch: Stopwatch,
) -> list[float]:
    """Seconds of a layer, the embedding and the head in one step. `head` gets states of its
    tokens, and runs the last layer before it.

    That computes less than the others: after its keys and values, only what the last tokens of
    prompts, or pooled ones, need. So the head may take less than nothing."""
    hidden = torch.randn_like(model.embed(step))
    parts = (
        lambda: run_layer(model, 0, hidden, attention),
        lambda: model.embed(step),
        lambda: head(hidden),
    )
    layer, embedding, last_layer_and_head = (watch.seconds(part) for part in parts)
    return [layer, embedding, last_layer_and_head - layer]


def _part_sizes(
    execution: ExecutionConfig, size: Callable[[StageModel], int]
) -> tuple[int, int, int]:
    """Sizes of a layer, the embedding and the head, from outlines of one layer of each kind. A tied
    embedding counts at both ends: each of them loads it."""
    kinds = _kinds(execution)

    def count(*, first: bool, last: bool) -> int:
        shares = (Share(layer, layer + 1, first=first, last=last) for layer in kinds)
        sizes = [size(outline(execution, share)) for share in shares]
        return round(np.average(sizes, weights=[*kinds.values()]))

    layer = count(first=False, last=False)
    return layer, count(first=True, last=False) - layer, count(first=False, last=True) - layer


def _numbers(model: StageModel) -> int:
    return sum(weight.numel() for weight in model.weights().values())


def _made_up_model(execution: ExecutionConfig, placement: Placement, layer: int) -> StageModel:
    """The whole model, but of one layer. Weights are random: the bits that change decide how much
    power a GPU draws, and so how fast it is. An embedding of its own is only looked up."""
    architecture = model_class(execution.model.architecture)
    own = layer, layer + 1
    model = architecture(execution.model, Share(*own, first=True, last=True), placement)
    multiplied = outline(execution, Share(*own, first=False, last=True)).weights().keys()
    _fill([weight for name, weight in model.weights().items() if name in multiplied])
    model.pack()
    return model


def _fill(tensors: Iterable[torch.Tensor]) -> None:
    """Fill with 65,537 random numbers over and over, so that rows differ. On a CPU, drawing them
    all would take seconds."""
    for tensor in tensors:
        flat = tensor.view(-1)
        numbers = 0.02 * torch.randn((1 << 16) + 1, device=tensor.device)
        if tensor.dtype == torch.uint8:  # MXFP4, with scales of at most 1
            numbers = torch.randint(100, 128, numbers.shape, device=tensor.device)
        whole = len(flat) // len(numbers) * len(numbers)
        flat[:whole].view(-1, len(numbers)).copy_(numbers)
        flat[whole:].copy_(numbers[: len(flat) - whole])


def _encoder_seconds(
    worker: WorkerConfig,
    loaded: LoadedModel,
    backends: Sequence[AttentionBackend],
    watch: Stopwatch,
) -> tuple[list[float], list[float]]:
    """The time of each part in a decode step, which an encoder has not, and in a step of texts."""
    model, runner = loaded.model, EncodeRunner(worker, loaded, backends)
    prepared = runner.prepare(step_of_texts(_prompt_lens(worker.execution).tolist()))
    step, attention = prepared.tensors, runner.attention.over(prepared.tensors)

    def head(hidden: torch.Tensor) -> None:
        runner.run_head(prepared, forward(model, step, hidden, attention))

    prompts = _seconds(model, step, attention, head, watch)
    return [0.0 for _ in prompts], prompts


def _decoder_seconds(
    worker: WorkerConfig,
    loaded: LoadedModel,
    backends: Sequence[AttentionBackend],
    watch: Stopwatch,
) -> tuple[list[float], list[float]]:
    # Encoders need none of this.
    from workers.stage.decode_runner import DecodeRunner  # noqa: PLC0415

    execution, model = worker.execution, loaded.model
    contexts, layout = _decode_contexts(execution), execution.cache_layout
    lens = _prompt_lens(execution)[: execution.max_running]
    decode_step = step_of_rows(np.ones_like(contexts), contexts - 1, layout, TokenSampling())
    prompts = step_of_rows(lens, np.zeros_like(lens), layout, TokenSampling())
    num_blocks = max(blocks_of(decode_step), blocks_of(prompts))
    runner = DecodeRunner(worker, loaded, backends, num_blocks)
    _fill([part for cache in runner.kv_cache.layers.values() for part in cache[:2]])

    def seconds(message: DecodeStep) -> list[float]:
        prepared = runner.prepare(message)
        step, requested = prepared.tensors, prepared.requested
        at_the_end = runner.attention.over(step, lambda: requested.last_tokens)

        def head(hidden: torch.Tensor) -> None:
            runner.run_head(prepared, forward(model, step, hidden, at_the_end))

        return _seconds(model, step, runner.attention.over(step), head, watch)

    return seconds(decode_step), seconds(prompts)


def _decode_contexts(execution: ExecutionConfig) -> IntArray:
    """The tokens of each row of a decode step, int32[R]."""
    rows = min(DECODE_ROWS, -(-execution.max_running // execution.num_stages))
    return np.full(rows, min(DECODE_CONTEXT, execution.max_model_len), np.int32)


def _prompt_lens(execution: ExecutionConfig) -> IntArray:
    """The tokens of each prompt of a step, int32[R], the last one shorter."""
    tokens = min(PROMPT_TOKENS[execution.device_type], execution.max_step_tokens)
    longest = min(PROMPT_LEN, execution.max_model_len)
    whole, rest = divmod(tokens, longest)
    return np.array([longest] * whole + [rest] * bool(rest), np.int32)
