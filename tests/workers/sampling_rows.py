"""Parameters of rows to sample, and the TokenCounts of rows without penalties."""

import numpy as np
import torch
from numpy.typing import ArrayLike

from workers.contract.messages import SlotInit
from workers.sampling.parameters import SamplingRows, SamplingTable
from workers.sampling.token_counts import TokenCounts

UNCOUNTED = TokenCounts(0, 0, torch.device("cpu"))


def rows(
    count: int,
    *,
    temperature: ArrayLike = 1.0,
    top_k: ArrayLike = 0,
    top_p: ArrayLike = 1.0,
    min_p: ArrayLike = 0.0,
    seed: ArrayLike = 0,
    index: ArrayLike = 0,
) -> SamplingRows:
    """Parameters of `count` rows; each a value for all of them or one value a row."""

    def column(value: ArrayLike, dtype: type[np.generic]) -> np.ndarray:
        return np.array(np.broadcast_to(np.asarray(value, dtype), count))

    return SamplingRows(
        temperature=column(temperature, np.float32),
        top_k=column(top_k, np.int32),
        top_p=column(top_p, np.float32),
        min_p=column(min_p, np.float32),
        seed=column(seed, np.uint64),
        index=column(index, np.int32),
    )


def init(
    slot: int,
    prompt: list[int],
    output: list[int] | None = None,
    bias: dict[int, float] | None = None,
    barred: list[int] | None = None,
    **given,
) -> SlotInit:
    """A request that moves into `slot`, greedy and unpenalised unless `given` says otherwise."""
    parameters = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0} | given
    penalised = any(name.endswith("_penalty") for name in given)
    known = np.array(prompt + (output or []), np.int32)
    bias = bias or {}
    return SlotInit(
        slot,
        len(prompt),
        known=known.tobytes() if penalised else b"",
        bias_ids=np.array(list(bias), np.int32).tobytes(),
        bias_values=np.array(list(bias.values()), np.float32).tobytes(),
        barred_ids=np.array(barred or [], np.int32).tobytes(),
        **parameters,
    )


def filled_table(
    vocabulary: int, inits: list[SlotInit], device: torch.device | str = "cpu"
) -> tuple[SamplingTable, SamplingRows]:
    """A table whose slots 0, 1, … hold `inits`, and the rows of all of them."""
    table = SamplingTable(len(inits), vocabulary, torch.device(device))
    table.update(inits)
    slots = np.array([init.slot for init in inits], np.int32)
    return table, table.rows(slots, np.array([init.prompt_len for init in inits], np.int32))


def allowing(vocabulary: int, allowed: list[list[int]]) -> torch.Tensor:
    """Mask words int32[M, ceil(V / 32)] that allow the tokens listed for each row."""
    bits = np.zeros((len(allowed), -(-vocabulary // 32) * 32), np.uint8)
    for row, ids in enumerate(allowed):
        bits[row, ids] = 1
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
