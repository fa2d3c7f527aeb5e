"""Encode steps -> tensors, and groups of rows, small enough to be worked out by hand."""

import msgspec
import numpy as np
import pytest
import torch

from tests.workers.step_maker import encoder_step, int32
from workers.contract.messages import DecodeStep
from workers.contract.model_config import PoolingMode
from workers.step.packed_step import PackedStep
from workers.step.rows import StepRows

CPU = torch.device("cpu")


def test_an_encoder_step_starts_every_row_at_0() -> None:
    message = encoder_step([[5, 6], [7]], token_types=[[0, 1], [1]])
    step = PackedStep.of(message, CPU)
    assert step.tokens.tolist() == [5, 6, 7, 0]
    assert step.positions.tolist() == [0, 1, 0, 0]
    assert step.token_types is not None
    assert step.token_types.tolist() == [0, 1, 1, 0]
    assert step.query_starts.tolist() == [0, 2, 3]
    assert step.row_lens.tolist() == step.query_lens.tolist() == [2, 1]
    assert step.unpooled_lens is step.attended_lens is None
    assert not step.requested
    assert PackedStep.of(encoder_step([[5]]), CPU).token_types is None


@pytest.mark.parametrize("unpooled", [b"", int32([1, 0, 0])])
@pytest.mark.parametrize("types", [None, [[0, 1], [1], [0, 0]]])
def test_token_states_are_picked(unpooled: bytes, types: list[list[int]] | None) -> None:
    message = msgspec.structs.replace(
        encoder_step([[5, 6], [7], [8, 9]], types),
        requested={"states": b"\1\0\1"},
        unpooled_lens=unpooled,
    )
    step = PackedStep.of(message, CPU)
    assert step.requested["states"].tolist() == [0, 1, 3, 4]
    assert (step.unpooled_lens is None) == (unpooled == b"")
    assert step.unpooled_lens is None or step.unpooled_lens.tolist() == [1, 0, 0]
    assert (step.token_types is None) == (types is None)


@pytest.mark.parametrize(
    ("modes", "pooled", "read"),
    [
        (("cls",), {"cls": [1, 2, 3, 0]}, "cls"),
        (("lasttoken",), {"lasttoken": [1, 2, 4, 0]}, "lasttoken"),
        (("cls", "lasttoken"), {"cls": [1, 2, 3, 0], "lasttoken": [1, 2, 4, 0]}, None),
        (("cls", "mean"), {"cls": [1, 2, 3, 0]}, None),
        (("mean",), {}, None),
        ((), {}, None),
    ],
)
def test_tokens_that_are_pooled_alone_are_all_that_is_read(
    modes: tuple[PoolingMode, ...], pooled: dict[PoolingMode, list[int]], read: PoolingMode | None
) -> None:
    message = encoder_step([[5, 6], [7], [8, 9]])
    message = msgspec.structs.replace(message, unpooled_lens=int32([1, 0, 0]))
    step = PackedStep.of(message, CPU, modes)
    assert {mode: tokens.tolist() for mode, tokens in step.pooled.items()} == pooled
    assert step.read is (None if read is None else step.pooled[read])
    with_states = msgspec.structs.replace(message, requested={"states": b"\1\0\1"})
    assert PackedStep.of(with_states, CPU, modes).read is None


def rows_of(groups: list[int]) -> StepRows:
    count = 12
    message = DecodeStep(
        step=0,
        tokens=bytes(4 * count),
        query_lens=int32([1] * count),
        slots=int32(list(range(count))),
        sample=bytes(count),
        starts=int32([500] * count),
        groups=int32(groups),
    )
    return StepRows.of(message)


def test_groups_of_a_subset_are_counted_anew() -> None:
    rows = rows_of([1, 3, 128, 4, 2, 64, 8, 4, 256])
    assert rows.groups.tolist() == [[1, 3, 128], [4, 2, 64], [8, 4, 256]]
    subset = np.array([0, 2, 3, 5, 8, 9, 11])
    assert rows.groups_among(subset).tolist() == [[1, 2, 128], [4, 3, 256]]
    assert rows.groups_among(np.arange(12)).tolist() == rows.groups.tolist()


def test_a_step_without_groups() -> None:
    assert rows_of([]).groups.shape == (0, 3)
