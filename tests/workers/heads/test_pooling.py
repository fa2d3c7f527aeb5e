"""Pooling of flat states: each row by itself (against the library: test_vector_modules.py)."""

from typing import get_args

import pytest
import torch

from tests.workers.step_maker import encoder_step
from workers.contract.model_config import PoolingConfig, PoolingMode
from workers.heads.encoder_head import pool
from workers.step.packed_step import PackedStep

LENS = [3, 1, 7, 2, 5]


def step(lens: list[int]) -> PackedStep:
    """A step that is pooled in every mode."""
    message = encoder_step([[1] * length for length in lens])
    return PackedStep.of(message, torch.device("cpu"), get_args(PoolingMode))


def states(lens: list[int]) -> torch.Tensor:
    """Random states, padded as steps are."""
    padded = max(sum(lens), 4)
    return torch.randn(padded, 6, generator=torch.Generator().manual_seed(sum(lens)))


@pytest.mark.parametrize("mode", get_args(PoolingMode))
def test_a_row_is_pooled_the_same_in_any_batch_and_its_nan_stays_in_it(mode) -> None:
    hidden = states(LENS)
    together = pool(hidden, step(LENS), PoolingConfig(modes=(mode,)))
    for index, row in enumerate(hidden[: sum(LENS)].split(LENS)):
        padded = torch.cat([row, torch.full((4, 6), 9.0)])[: max(len(row), 4)]
        alone = pool(padded, step([len(row)]), PoolingConfig(modes=(mode,)))
        assert torch.equal(alone[0], together[index])
    hidden[4:11] = torch.nan
    failed = pool(hidden, step(LENS), PoolingConfig(modes=(mode,))).isnan().any(dim=1)
    assert failed.tolist() == [False, False, True, False, False]


def test_half_precision_states_are_pooled_in_float32() -> None:
    hidden = torch.full((2048, 1), 1.0 + 2**-7, dtype=torch.bfloat16)
    pooled = pool(hidden, step([2048]), PoolingConfig(modes=("mean",)))
    assert pooled.item() == pytest.approx(1.0 + 2**-7, abs=1e-6)
