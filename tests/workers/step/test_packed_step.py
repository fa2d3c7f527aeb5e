"""Encode steps -> tensors, on steps small enough to be worked out by hand."""

import msgspec
import torch

from tests.workers.step_maker import encoder_step
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
    assert step.output_indices is None
    assert PackedStep.of(encoder_step([[5]]), CPU).token_types is None


def test_token_states_are_picked_beside_pooled_vectors() -> None:
    message = msgspec.structs.replace(encoder_step([[5, 6], [7], [8, 9]]), token_states=b"\1\0\1")
    indices = PackedStep.of(message, CPU).output_indices
    assert indices is not None
    assert indices.tolist() == [3 + 0, 3 + 1, 1, 3 + 3, 3 + 4]
