"""From token states to one vector a row: sentence-transformers' Pooling module."""

import torch

from workers.contract.model_config import PoolingConfig
from workers.step.packed_step import PackedStep


def pool(hidden: torch.Tensor, step: PackedStep, config: PoolingConfig) -> torch.Tensor:
    """`hidden` [T', D] -> float32[R, D], not normalised; NaN stays in its row."""
    if config.mode == "cls":
        return first_tokens(hidden, step).float()
    if config.mode == "last":
        return hidden[step.query_starts[1:] - 1].float()
    states = hidden[: step.num_tokens].float()
    lens = step.row_lens
    num_rows = len(step.query_lens)
    row_of_token = torch.repeat_interleave(
        torch.arange(num_rows, device=hidden.device), lens, output_size=step.num_tokens
    )
    if config.mode == "max":
        lowest = states.new_full((num_rows, states.shape[1]), -torch.inf)
        index = row_of_token[:, None].expand_as(states)
        return lowest.scatter_reduce_(0, index, states, "amax")
    # Added token by token, in order: a row's sum does not depend on its neighbours.
    sums = states.new_zeros((num_rows, states.shape[1]))
    return sums.index_add_(0, row_of_token, states) / lens[:, None]


def first_tokens(hidden: torch.Tensor, step: PackedStep) -> torch.Tensor:
    """The states of every row's first token, [R, D]."""
    return hidden[step.query_starts[:-1]]
