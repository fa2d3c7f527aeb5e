"""What the parts of a model cost on a stage's device: one made-up layer, the embedding and the head
are timed before any weights are loaded, and the layers are divided by it
(`engine_core/executor/partition.py`)."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from workers.attention.base import AttentionBackend
from workers.attention.kv_cache import KVCache, kv_block_bytes
from workers.contract.config import Device, ExecutionConfig, WorkerConfig
from workers.contract.share import PartCosts, Share, StageCosts
from workers.contract.token_sampling import TokenSampling
from workers.device.timing import seconds_of
from workers.heads.encoder_head import encoder_head
from workers.layers.placement import Placement
from workers.models.base import StageModel, model_class
from workers.models.layer_loop import forward, run_layer
from workers.stage.model_runner import stage_attention
from workers.stage.warm_up_steps import blocks_of, step_of_rows, step_of_texts
from workers.step.packed_step import PackedStep
from workers.step.rows import IntArray
from workers.step.slot_table import SlotTable
from workers.weights.loader import TORCH_DTYPES, outline

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

MEASURING_SECONDS = 4.0
"""No part begins to be timed after so many; the last one may have a second's kernels to compile."""

_logger = logging.getLogger(__name__)


class _Parts(NamedTuple):
    """The work of one step, part by part: each call does it once, or queues it."""

    layer: Callable[[], object]
    embedding: Callable[[], object]
    head: Callable[[], object]


def measured_costs(worker: WorkerConfig, backends: Sequence[AttentionBackend]) -> StageCosts | None:
    """Times one layer with random weights, the embedding and the head on the stage's device; None
    for layers that are too small, and on a CPU also for those that are too large. Takes a few
    tenths of a second, besides what kernels take to compile: after `MEASURING_SECONDS` all times
    are left 0."""
    started, execution = time.monotonic(), worker.execution
    placement = Placement(torch.device(worker.local_device), TORCH_DTYPES[execution.dtype])
    weights = _part_weights(execution)
    on_cpu, multiplied = placement.device.type == "cpu", weights.layer + weights.head
    if weights.layer < LEAST_LAYER_WEIGHTS or (on_cpu and multiplied > MOST_CPU_WEIGHTS):
        return None
    model, timer = _made_up_model(execution, placement), _PartTimer(placement.device, started)
    try:
        if execution.model.has_kv_cache:
            decode, prompts = _decoder_seconds(execution, model, backends, placement, timer)
        else:
            prompts = _encoder_seconds(execution, model, backends, placement, timer)
            decode = [0.0 for _ in prompts]
    except TimeoutError:
        decode = prompts = [0.0 for _ in weights]
    block_bytes = 0
    if execution.model.has_kv_cache:
        block_bytes = kv_block_bytes(execution.model, 1, execution.block_size, placement.dtype)
    sizes = [count * placement.dtype.itemsize for count in weights]
    layer, embedding, head = map(PartCosts, decode, prompts, sizes)
    costs = StageCosts(layer, embedding, head, block_bytes)
    if any(prompts):
        _log(costs, time.monotonic() - started)
    return costs


class _PartTimer:
    """Times parts on a device, until `MEASURING_SECONDS` after `started`."""

    def __init__(self, device: torch.device, started: float) -> None:
        self.device, self._until = device, started + MEASURING_SECONDS

    def seconds(self, parts: _Parts) -> list[float]:
        """What each part takes. Raises TimeoutError once the time is over."""
        times: list[float] = []
        for part in parts:
            if time.monotonic() >= self._until:
                raise TimeoutError
            times.append(seconds_of(part, self.device))
        return times


def _log(costs: StageCosts, seconds: float) -> None:
    parts = ", ".join(
        f"{name} {1e6 * part.decode:.0f} + {1e6 * part.prompts:.0f} µs"
        for name, part in (
            ("a layer", costs.layer),
            ("embedding", costs.embedding),
            ("head", costs.head),
        )
    )
    _logger.info("decode step + step of prompts: %s; measured in %.1f s", parts, seconds)


class _PartWeights(NamedTuple):
    """How many numbers each part has."""

    layer: int
    embedding: int
    head: int


def _part_weights(execution: ExecutionConfig) -> _PartWeights:
    """From shares of one layer, without memory. A tied embedding counts at both ends: each of them
    loads it."""

    def count(*, first: bool, last: bool) -> int:
        weights = outline(execution, Share(0, 1, first=first, last=last)).weights()
        return sum(weight.numel() for weight in weights.values())

    layer = count(first=False, last=False)
    return _PartWeights(
        layer=layer,
        embedding=count(first=True, last=False) - layer,
        head=count(first=False, last=True) - layer,
    )


def _made_up_model(execution: ExecutionConfig, placement: Placement) -> StageModel:
    """The whole model, but of one layer. How many bits change decides how much power a GPU draws,
    and so how fast it is: the weights are random. An embedding is only looked up: it stays as it
    is, unless the head shares it."""
    architecture = model_class(execution.model.architecture)
    model = architecture(execution.model, Share(0, 1, first=True, last=True), placement)
    multiplied = outline(execution, Share(0, 1, first=False, last=True)).weights().keys()
    _fill([weight for name, weight in model.weights().items() if name in multiplied])
    model.pack()
    return model


def _fill(tensors: Iterable[torch.Tensor]) -> None:
    """Random numbers, the same 65,537 over and over, so that rows differ: on a CPU, drawing them
    all would take seconds."""
    for tensor in tensors:
        flat = tensor.view(-1)
        numbers = 0.02 * torch.randn((1 << 16) + 1, dtype=tensor.dtype, device=tensor.device)
        whole = len(flat) // len(numbers) * len(numbers)
        flat[:whole].view(-1, len(numbers)).copy_(numbers)
        flat[whole:].copy_(numbers[: len(flat) - whole])


def _encoder_seconds(
    execution: ExecutionConfig,
    model: StageModel,
    backends: Sequence[AttentionBackend],
    placement: Placement,
    timer: _PartTimer,
) -> list[float]:
    """The time of each part in a step of texts."""
    step = PackedStep.of(step_of_texts(_prompt_lens(execution).tolist()), placement.device)
    stage = stage_attention(execution, model, backends, (), placement)
    attention = stage.over(step)
    hidden, head = torch.randn_like(model.embed(step)), encoder_head(execution, model)
    parts = _Parts(
        layer=lambda: run_layer(model, 0, hidden, attention),
        embedding=lambda: model.embed(step),
        head=lambda: head(step, model.final_norm(hidden)),
    )
    return timer.seconds(parts)


def _decoder_seconds(
    execution: ExecutionConfig,
    model: StageModel,
    backends: Sequence[AttentionBackend],
    placement: Placement,
    timer: _PartTimer,
) -> tuple[list[float], list[float]]:
    """The time of each part in a decode step, and in a step of prompts."""
    # Encoders need none of these.
    from workers.heads.decoder_head import decoder_head  # noqa: PLC0415
    from workers.sampling.sampling_table import SamplingTable  # noqa: PLC0415
    from workers.stage.decode_input import DecodeInputBuilder  # noqa: PLC0415

    device, size, prompts = placement.device, execution.block_size, _prompt_lens(execution)
    contexts, generates = _decode_contexts(execution), execution.task == "generate"
    blocks = [blocks_of(lens, size) for lens in (contexts, prompts)]
    num_blocks, max_blocks = (max(map(of, blocks)) for of in (np.sum, np.max))
    max_rows = max(len(contexts), len(prompts))
    slots = SlotTable(max_rows, int(max_blocks), size, int(num_blocks), device)
    table = SamplingTable(max_rows, execution.model.vocab_size, device) if generates else None
    cache = KVCache(execution.model, 1, int(num_blocks), size, placement.dtype, device).layers
    _fill([cache[0].keys, cache[0].values])
    stage = stage_attention(execution, model, backends, cache, placement)
    builder = DecodeInputBuilder(slots, table, first=True, last=True)
    head = decoder_head(execution.task, model, slots, table)

    def seconds(query_lens: IntArray, cached: IntArray) -> list[float]:
        batch = builder.build(step_of_rows(query_lens, cached, size, TokenSampling()))
        step, requested = batch.tensors, batch.requested
        hidden, attention = torch.randn_like(model.embed(step)), stage.over(step)
        at_the_end = stage.over(step, lambda: requested.last_tokens)
        parts = _Parts(
            layer=lambda: run_layer(model, 0, hidden, attention),
            embedding=lambda: model.embed(step),
            head=lambda: head(requested, forward(model, step, hidden, at_the_end)),
        )
        layer, embedding, last_layer_and_head = timer.seconds(parts)
        # The last layer computes less than the others: after its keys and values, only what the
        # last tokens of prompts need.
        return [layer, embedding, last_layer_and_head - layer]

    return seconds(np.ones_like(contexts), contexts - 1), seconds(prompts, np.zeros_like(prompts))


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
