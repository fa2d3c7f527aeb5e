"""Steps without a request: those that warm a stage up, and others by which it is measured."""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from workers.contract.config import ExecutionConfig
from workers.contract.messages import DecodeStep, EncodeStep, SlotInit
from workers.contract.token_sampling import GREEDY, TokenSampling
from workers.step.rows import IntArray

MAX_TOKENS = 64
"""Tokens of the longest step that warms up: enough to take every path."""


def encode_steps(config: ExecutionConfig) -> list[EncodeStep]:
    """Two rows of unequal length, then one short row."""
    length = max(1, min(MAX_TOKENS, config.max_model_len, config.max_step_tokens // 2))
    return [step_of_texts(lens) for lens in ([length, max(1, length // 2)], [1])]


def step_of_texts(lens: Sequence[int]) -> EncodeStep:
    """Texts of `lens` tokens."""
    query_lens = np.array(lens, np.int32)
    return EncodeStep(step=0, tokens=_zeros(sum(lens)), query_lens=query_lens.tobytes())


def decode_steps(config: ExecutionConfig, num_blocks: int) -> list[DecodeStep]:
    """A prompt that is scored and sampled with truncation, then its last token again, greedily, and
    a block copied."""
    size, truncated = config.block_size, TokenSampling(top_p=0.9)
    length = min(MAX_TOKENS, config.max_model_len, config.max_step_tokens, num_blocks * size)
    lens, one = np.array([length], np.int32), np.ones(1, np.int32)
    prompt = step_of_rows(lens, np.zeros_like(lens), size, truncated)
    scored = [replace(init, logprobs=1) for init in prompt.inits]
    again = step_of_rows(one, lens - 1, size, GREEDY)
    last_token = np.array([-1], np.int32).tobytes()
    return [
        replace(prompt, inits=scored, targets=_zeros(length)),
        replace(again, step=1, tokens=last_token, block_copies=_zeros(2)),
    ]


def step_of_first_tokens(rows: int) -> DecodeStep:
    """Rows of one token that begin, all in one block."""
    lens = np.ones(rows, np.int32)
    slots, zeros = np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32)
    updates = np.stack([slots, zeros, zeros], axis=1)
    return replace(step_of_rows(lens, zeros, 1, GREEDY), block_updates=updates.tobytes())


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


def _zeros(count: int) -> bytes:
    return bytes(4 * count)
