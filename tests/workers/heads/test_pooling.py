"""Pooling of flat states against the same, row by row."""

import numpy as np
import pytest
import torch

from workers.contract.messages import EncodeStep
from workers.contract.model_config import PoolingConfig
from workers.heads.encoder_head import first_tokens, pool
from workers.step.packed_step import PackedStep

LENS = [3, 1, 7, 2, 5]


def step(lens: list[int]) -> PackedStep:
    message = EncodeStep(
        step=0,
        tokens=np.ones(sum(lens), np.int32).tobytes(),
        query_lens=np.array(lens, np.int32).tobytes(),
    )
    return PackedStep.of(message, torch.device("cpu"))


def states(lens: list[int]) -> torch.Tensor:
    """Random states, padded as steps are."""
    padded = max(sum(lens), 4)
    return torch.randn(padded, 6, generator=torch.Generator().manual_seed(sum(lens)))


BY_ROW = {
    "cls": lambda row: row[0],
    "lasttoken": lambda row: row[-1],
    "max": lambda row: row.max(0).values,
    "mean": lambda row: row.mean(0),
    "mean_sqrt_len_tokens": lambda row: row.sum(0) / len(row) ** 0.5,
    "weightedmean": lambda row: torch.arange(1.0, len(row) + 1) @ row / sum(range(len(row) + 1)),
}


@pytest.mark.parametrize("mode", list(BY_ROW))
@pytest.mark.parametrize("lens", [LENS, [1], [2], [300]])
def test_each_row_is_pooled_by_itself(mode, lens) -> None:
    hidden = states(lens)
    pooled = pool(hidden, step(lens), PoolingConfig(modes=(mode,)))
    expected = torch.stack([BY_ROW[mode](row) for row in hidden[: sum(lens)].split(lens)])
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("mode", list(BY_ROW))
def test_a_row_is_pooled_the_same_in_any_batch(mode) -> None:
    hidden = states(LENS)
    together = pool(hidden, step(LENS), PoolingConfig(modes=(mode,)))
    for index, row in enumerate(hidden[: sum(LENS)].split(LENS)):
        padded = torch.cat([row, torch.full((4, 6), 9.0)])[: max(len(row), 4)]
        alone = pool(padded, step([len(row)]), PoolingConfig(modes=(mode,)))
        assert torch.equal(alone[0], together[index])


@pytest.mark.parametrize("mode", list(BY_ROW))
def test_nan_stays_in_its_row(mode) -> None:
    hidden = states(LENS)
    hidden[4:11] = torch.nan
    failed = pool(hidden, step(LENS), PoolingConfig(modes=(mode,))).isnan().any(dim=1)
    assert failed.tolist() == [False, False, True, False, False]


def test_half_precision_states_are_pooled_in_float32() -> None:
    hidden = torch.full((2048, 1), 1.0 + 2**-7, dtype=torch.bfloat16)
    pooled = pool(hidden, step([2048]), PoolingConfig(modes=("mean",)))
    assert pooled.item() == pytest.approx(1.0 + 2**-7, abs=1e-6)


def test_first_tokens_are_where_rows_start() -> None:
    hidden = states(LENS)
    assert torch.equal(first_tokens(hidden, step(LENS)), hidden[[0, 3, 4, 11, 13]])
