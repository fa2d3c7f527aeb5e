"""From token states to one vector a row: sentence-transformers' Pooling module."""

from collections.abc import Callable, Mapping

import torch

from workers.contract.model_config import PoolingConfig, PoolingMode
from workers.step.packed_step import PackedStep

_Pool = Callable[[torch.Tensor, PackedStep], torch.Tensor]


def pool(hidden: torch.Tensor, step: PackedStep, config: PoolingConfig) -> torch.Tensor:
    """`hidden` [T', D] -> float32[R, modes * D], not normalised; NaN stays in its row.

    Rows have more tokens than `step.unpooled_lens`.
    """
    vectors = [_POOLS[mode](hidden, step) for mode in config.modes]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)


def first_tokens(hidden: torch.Tensor, step: PackedStep) -> torch.Tensor:
    """The states of every row's first token, [R, D]."""
    return hidden[step.query_starts[:-1]]


def _cls(hidden: torch.Tensor, step: PackedStep) -> torch.Tensor:
    if step.unpooled_lens is None:
        return first_tokens(hidden, step).float()
    return hidden[step.query_starts[:-1] + step.unpooled_lens].float()


def _last(hidden: torch.Tensor, step: PackedStep) -> torch.Tensor:
    return hidden[step.query_starts[1:] - 1].float()


def _max(hidden: torch.Tensor, step: PackedStep) -> torch.Tensor:
    rows = _row_of_token(step)
    states = _without_prompts(hidden[: step.num_tokens].float(), step, rows, -torch.inf)
    lowest = states.new_full((len(step.query_lens), states.shape[1]), -torch.inf)
    return lowest.scatter_reduce_(0, rows[:, None].expand_as(states), states, "amax")


def _mean(hidden: torch.Tensor, step: PackedStep) -> torch.Tensor:
    return _sums(hidden, step) / _num_pooled(step)


def _mean_sqrt_len(hidden: torch.Tensor, step: PackedStep) -> torch.Tensor:
    return _sums(hidden, step) / _num_pooled(step).sqrt()


def _weighted_mean(hidden: torch.Tensor, step: PackedStep) -> torch.Tensor:
    """A token's weight is its place in the row, from 1; a prompt that is not pooled counts."""
    places = step.positions[: step.num_tokens].float() + 1
    length = step.row_lens[:, None].float()
    weights = length * (length + 1) / 2
    if step.unpooled_lens is not None:
        prompt = step.unpooled_lens[:, None].float()
        weights -= prompt * (prompt + 1) / 2
    return _sums(hidden, step, places) / weights


_POOLS: Mapping[PoolingMode, _Pool] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


def _sums(
    hidden: torch.Tensor, step: PackedStep, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Each row's sum of its pooled tokens, float32[R, D]; `weights` float32[T].

    Added token by token, in order: a row's sum does not depend on its neighbours.
    """
    states = hidden[: step.num_tokens].float()
    rows = _row_of_token(step)
    if weights is not None:
        states = states * weights[:, None]
    states = _without_prompts(states, step, rows, 0.0)
    sums = states.new_zeros((len(step.query_lens), states.shape[1]))
    return sums.index_add_(0, rows, states)


def _row_of_token(step: PackedStep) -> torch.Tensor:
    """int64[T]"""
    numbers = torch.arange(len(step.query_lens), device=step.row_lens.device)
    return torch.repeat_interleave(numbers, step.row_lens, output_size=step.num_tokens)


def _num_pooled(step: PackedStep) -> torch.Tensor:
    """How many tokens of each row are pooled, float32[R, 1]."""
    lens = step.row_lens if step.unpooled_lens is None else step.row_lens - step.unpooled_lens
    return lens[:, None].float()


def _without_prompts(
    states: torch.Tensor, step: PackedStep, rows: torch.Tensor, value: float
) -> torch.Tensor:
    """`states` [T, D] with `value` in place of what is not pooled; `rows` are the tokens'."""
    if step.unpooled_lens is None:
        return states
    left_out = step.positions[: step.num_tokens] < step.unpooled_lens[rows]
    return states.masked_fill(left_out[:, None], value)
