"""The first step of a kind pays for lazy initialisation: run each kind once before any request."""

import logging
import time

import numpy as np
import torch

from workers.attention.kv_cache import KVCache
from workers.contract.config import WorkerConfig
from workers.contract.messages import SlotInit, StepInput
from workers.contract.sampling_parameters import GREEDY, TokenSampling
from workers.device.tuning import WARM_LM_HEAD_ROWS
from workers.graphs.graph_sizes import decode_graph_sizes, prompt_graph_sizes
from workers.graphs.graph_summary import summary
from workers.stage.model_runner import ModelRunner

LONGEST = 64
"""Tokens of the longest step: enough to take every path."""

_logger = logging.getLogger(__name__)


def warm_up(runner: ModelRunner, config: WorkerConfig) -> None:
    """Run a step of each kind through this stage alone, and leave no trace of it."""
    cache = runner.kv_cache
    for message in _encoder_steps(config) if cache is None else _decoder_steps(config, cache):
        runner.run_alone(message)
    runner.warm_up_sampling()
    if runner.can_capture():
        _capture(runner, config)
    elif cache is not None and config.device == "cuda":
        _logger.info("CUDA graphs: none, for the attention backend's steps cannot be captured")
        # What capturing would have compiled: there are kernels for some numbers of rows.
        for rows in decode_graph_sizes(min(WARM_LM_HEAD_ROWS, config.max_slots)):
            runner.run_alone(_decode_step(rows))
    runner.clear()
    for layer in cache.layers if cache else ():
        layer.keys[: _blocks(LONGEST, config)].zero_()
        layer.values[: _blocks(LONGEST, config)].zero_()


def _capture(runner: ModelRunner, config: WorkerConfig) -> None:
    rows, tokens = decode_graph_sizes(config.max_slots), prompt_graph_sizes(config.max_step_tokens)
    started, free = time.monotonic(), torch.cuda.mem_get_info()[0]
    graphs = runner.capture(rows, tokens)
    taken, seconds = free - torch.cuda.mem_get_info()[0], time.monotonic() - started
    told = summary(graphs, rows, tokens)
    _logger.info("CUDA graphs: %s; %.1f s, %d MiB", told, seconds, taken >> 20)


def _encoder_steps(config: WorkerConfig) -> list[StepInput]:
    """Two rows of unequal length, then one short row."""
    length = max(1, min(LONGEST, config.max_model_len, config.max_step_tokens // 2))
    return [
        StepInput(0, tokens=_zeros(sum(lens)), query_lens=_int32(*lens))
        for lens in ((length, max(1, length // 2)), (1,))
    ]


def _decoder_steps(config: WorkerConfig, kv_cache: KVCache) -> list[StepInput]:
    """A prompt that is scored and sampled with truncation, then its last token again, greedily."""
    held = kv_cache.num_blocks * config.block_size
    length = min(LONGEST, config.max_model_len, config.max_step_tokens, held)
    blocks = np.arange(_blocks(length, config), dtype=np.int32)
    table = np.stack([np.zeros_like(blocks), blocks, blocks], axis=1)
    truncated = TokenSampling(top_p=0.9)
    drawn = SlotInit(slot=0, prompt_len=length, seed=0, sampling=truncated, logprobs=1)
    greedy = SlotInit(slot=0, prompt_len=length, seed=0, sampling=GREEDY)
    return [
        StepInput(
            0,
            tokens=_zeros(length),
            query_lens=_int32(length),
            starts=_int32(0),
            block_updates=table.tobytes(),
            inits=[drawn],
            targets=_zeros(length),
            slots=_int32(0),
            sample=b"\1",
        ),
        StepInput(
            1,
            tokens=_int32(-1),
            query_lens=_int32(1),
            starts=_int32(length - 1),
            inits=[greedy],
            slots=_int32(0),
            sample=b"\1",
        ),
    ]


def _decode_step(rows: int) -> StepInput:
    """Rows that begin, all in one block."""
    slots = np.arange(rows, dtype=np.int32)
    table = np.stack([slots, np.zeros_like(slots), np.zeros_like(slots)], axis=1)
    return StepInput(
        0,
        tokens=_zeros(rows),
        query_lens=np.ones(rows, np.int32).tobytes(),
        starts=_zeros(rows),
        block_updates=table.tobytes(),
        inits=[SlotInit(slot=slot, prompt_len=1, seed=0, sampling=GREEDY) for slot in range(rows)],
        slots=slots.tobytes(),
        sample=b"\1" * rows,
    )


def _blocks(tokens: int, config: WorkerConfig) -> int:
    return -(-tokens // config.block_size)


def _int32(*values: int) -> bytes:
    return np.array(values, np.int32).tobytes()


def _zeros(count: int) -> bytes:
    return bytes(4 * count)
