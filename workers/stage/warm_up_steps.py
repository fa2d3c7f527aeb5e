"""Steps without a request: those that warm a stage up, and others by which it is measured."""

import numpy as np

from workers.contract.config import ExecutionConfig
from workers.contract.messages import DecodeStep, EncodeStep, SlotInit
from workers.contract.token_sampling import GREEDY, TokenSampling
from workers.step.rows import IntArray

MAX_TOKENS = 64
"""Tokens of the longest step that warms up: enough to take every path."""


def encode_steps(config: ExecutionConfig) -> list[EncodeStep]:
    """Two rows of unequal length, then one short row."""
    length = max(1, min(MAX_TOKENS, config.max_model_len, config.max_step_tokens // 2))
    return [
        EncodeStep(step=0, tokens=_zeros(sum(lens)), query_lens=_int32(*lens))
        for lens in ((length, max(1, length // 2)), (1,))
    ]


def decode_steps(config: ExecutionConfig, num_blocks: int) -> list[DecodeStep]:
    """A prompt that is scored and sampled with truncation, then its last token again, greedily, and
    a block copied."""
    held = num_blocks * config.block_size
    length = min(MAX_TOKENS, config.max_model_len, config.max_step_tokens, held)
    blocks = np.arange(-(-length // config.block_size), dtype=np.int32)
    updates = np.stack([np.zeros_like(blocks), blocks, blocks], axis=1)
    truncated = TokenSampling(top_p=0.9)
    return [
        DecodeStep(
            step=0,
            tokens=_zeros(length),
            query_lens=_int32(length),
            slots=_int32(0),
            starts=_int32(0),
            sample=b"\1",
            block_updates=updates.tobytes(),
            inits=[SlotInit(slot=0, prompt_len=length, seed=0, sampling=truncated, logprobs=1)],
            targets=_zeros(length),
        ),
        DecodeStep(
            step=1,
            tokens=_int32(-1),
            query_lens=_int32(1),
            slots=_int32(0),
            starts=_int32(length - 1),
            sample=b"\1",
            block_copies=_int32(0, 0),
            inits=[SlotInit(slot=0, prompt_len=length, seed=0, sampling=GREEDY)],
        ),
    ]


def step_of_first_tokens(rows: int) -> DecodeStep:
    """Rows of one token that begin, all in one block."""
    slots = np.arange(rows, dtype=np.int32)
    updates = np.stack([slots, np.zeros_like(slots), np.zeros_like(slots)], axis=1)
    return DecodeStep(
        step=0,
        tokens=_zeros(rows),
        query_lens=np.ones(rows, np.int32).tobytes(),
        slots=slots.tobytes(),
        starts=_zeros(rows),
        sample=b"\1" * rows,
        block_updates=updates.tobytes(),
        inits=[SlotInit(slot=slot, prompt_len=1, seed=0, sampling=GREEDY) for slot in range(rows)],
    )


def step_of_rows(
    query_lens: IntArray, cached: IntArray, block_size: int, sampling: TokenSampling
) -> DecodeStep:
    """Rows of `query_lens` tokens behind `cached` ones, int32[R] each, all of which sample. Row r
    is in slot r, and its blocks follow those of row r - 1."""
    contexts = cached + query_lens
    blocks = blocks_of(contexts, block_size)
    slots = np.arange(len(query_lens), dtype=np.int32)
    firsts = np.cumsum(blocks) - blocks
    owner, block = np.repeat(slots, blocks), np.arange(blocks.sum(), dtype=np.int32)
    table = np.stack([owner, block - firsts[owner], block], axis=1, dtype=np.int32)
    return DecodeStep(
        step=0,
        tokens=_zeros(int(query_lens.sum())),
        query_lens=query_lens.tobytes(),
        slots=slots.tobytes(),
        starts=cached.tobytes(),
        sample=b"\1" * len(slots),
        block_updates=table.tobytes(),
        inits=[
            SlotInit(
                slot=slot,
                prompt_len=context,
                seed=slot,
                sampling=sampling,
                known_tokens=_zeros(context) if sampling.penalised else b"",
            )
            for slot, context in enumerate(contexts.tolist())
        ],
    )


def blocks_of(contexts: IntArray, block_size: int) -> IntArray:
    """How many blocks each context takes."""
    return -(-contexts // block_size)


def _int32(*values: int) -> bytes:
    return np.array(values, np.int32).tobytes()


def _zeros(count: int) -> bytes:
    return bytes(4 * count)
