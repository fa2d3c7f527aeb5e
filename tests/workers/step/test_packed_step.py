"""Encode steps -> tensors, on steps small enough to be worked out by hand."""

import msgspec
import pytest
import torch

from tests.workers.step_maker import encoder_step, int32
from workers.step.packed_step import PackedStep

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
    assert step.state_indices is step.unpooled_lens is None
    assert PackedStep.of(encoder_step([[5]]), CPU).token_types is None


@pytest.mark.parametrize("unpooled", [b"", int32([1, 0, 0])])
@pytest.mark.parametrize("types", [None, [[0, 1], [1], [0, 0]]])
def test_token_states_are_picked(unpooled: bytes, types: list[list[int]] | None) -> None:
    message = msgspec.structs.replace(
        encoder_step([[5, 6], [7], [8, 9]], types),
        token_states=b"\1\0\1",
        unpooled_lens=unpooled,
    )
    step = PackedStep.of(message, CPU)
    assert step.state_indices is not None
    assert step.state_indices.tolist() == [0, 1, 3, 4]
    assert (step.unpooled_lens is None) == (unpooled == b"")
    assert step.unpooled_lens is None or step.unpooled_lens.tolist() == [1, 0, 0]
    assert (step.token_types is None) == (types is None)
