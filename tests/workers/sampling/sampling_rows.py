"""Parameters of rows to sample, and what their tokens are compared by."""

import msgspec
import numpy as np
import torch
from numpy.typing import ArrayLike

from workers.contract.messages import SlotInit
from workers.contract.token_sampling import GREEDY, BarredTokens, TokenBias, TokenSampling
from workers.sampling.sampling_table import (
    SAMPLING_RECORD,
    SamplingRows,
    SamplingTable,
    TokenCounts,
)

UNCOUNTED = TokenCounts(0, 0, torch.device("cpu"))


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Pearson's statistic: how far counts are from what was expected."""
    return float(((counts - expected) ** 2 / expected).sum())


def rows(
    count: int, *, seed: ArrayLike = 0, index: ArrayLike = 0, **sampling: ArrayLike
) -> SamplingRows:
    """Parameters of `count` rows, neutral unless `sampling` says otherwise; each a value for all of
    them or one value a row."""
    parameters = np.zeros(count, SAMPLING_RECORD)
    for field in msgspec.structs.fields(TokenSampling):
        parameters[field.name] = sampling.pop(field.name, field.default)
    assert not sampling
    parameters["seed"] = seed
    indices = np.array(np.broadcast_to(np.asarray(index, np.int32), count))
    return SamplingRows(np.arange(count, dtype=np.int32), parameters, indices)


def init(
    slot: int,
    prompt: list[int],
    output: list[int] | None = None,
    bias: dict[int, float] | None = None,
    barred: list[int] | None = None,
    min_tokens: int = 0,
    **given,
) -> SlotInit:
    """A request that moves into `slot`, greedy and unpenalised unless `given` says otherwise."""
    sampling = msgspec.structs.replace(GREEDY, **given)
    known = np.array(prompt + (output or []), np.int32).tobytes()
    bias = bias or {}
    return SlotInit(
        slot=slot,
        prompt_len=len(prompt),
        seed=0,
        sampling=sampling,
        known_tokens=known if sampling.penalised else b"",
        bias=TokenBias(
            np.array(list(bias), np.int32).tobytes(),
            np.array(list(bias.values()), np.float32).tobytes(),
        ),
        barred=BarredTokens(min_tokens, np.array(barred or [], np.int32).tobytes()),
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
