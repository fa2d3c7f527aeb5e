"""SPLADE pooling: one sparse vector a text, of the size of the vocabulary (Formal et al. 2021,
arXiv:2107.05720, with the sum over tokens; arXiv:2109.10086, with the maximum)."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from workers.contract.model_config import SpladeConfig

TOKENS_AT_ONCE = 512
"""Tokens whose logits are held together, and rows whose vectors are: times a vocabulary, tens of
megabytes."""


class SparseVectors(NamedTuple):
    """R sparse vectors: entries float32[E, 2] are the index and value of each number that is not
    zero, row after row, indices ascending; counts int32[R] are the entries of each row.

    float32 holds every integer up to 2**24, more than a vocabulary has.
    """

    counts: torch.Tensor
    entries: torch.Tensor


def sparse_vectors(
    hidden: torch.Tensor,
    lens: Sequence[int],
    logits: Callable[[torch.Tensor], torch.Tensor],
    config: SpladeConfig,
) -> SparseVectors:
    """Pool rows of `lens` tokens, the first of the final states `hidden` [T', D]; `logits` maps
    [N, D] -> [N, V]. NaN stays in its row, as an entry.

    On CUDA the host waits: the number of entries is known only once they are computed.
    """
    parts: list[SparseVectors] = []
    start = 0
    for group in _groups(lens):
        states = hidden[start : start + sum(group)]
        parts.append(_without_zeros(_pooled(states, group, logits, config)))
        start += sum(group)
    return SparseVectors(
        torch.cat([part.counts for part in parts]), torch.cat([part.entries for part in parts])
    )


def _groups(lens: Sequence[int]) -> Iterator[list[int]]:
    """Rows in order, in groups of at most TOKENS_AT_ONCE tokens, or of one row."""
    group: list[int] = []
    room = TOKENS_AT_ONCE
    for length in lens:
        if group and length > room:
            yield group
            group, room = [], TOKENS_AT_ONCE
        group.append(length)
        room -= length
    yield group


def _pooled(
    states: torch.Tensor,
    lens: list[int],
    logits: Callable[[torch.Tensor], torch.Tensor],
    config: SpladeConfig,
) -> torch.Tensor:
    """float32[R, V]"""
    row_of_token = torch.repeat_interleave(
        torch.arange(len(lens), device=states.device),
        torch.tensor(lens, device=states.device),
        output_size=len(states),
    )
    sums = config.strategy == "sum"
    vectors: torch.Tensor | None = None
    for first in range(0, len(states), TOKENS_AT_ONCE):
        piece = slice(first, first + TOKENS_AT_ONCE)
        weights = logits(states[piece]).float()
        if sums:
            _activate(weights, config)
        if vectors is None:
            vectors = weights.new_zeros((len(lens), weights.shape[1]))
        index = row_of_token[piece, None].expand_as(weights)
        vectors.scatter_reduce_(0, index, weights, "sum" if sums else "amax")
    assert vectors is not None, "a row has at least one token"
    # Activations are monotonic: the maximum alone needs one.
    return vectors if sums else _activate(vectors, config)


def _activate(logits: torch.Tensor, config: SpladeConfig) -> torch.Tensor:
    """In place."""
    weights = logits.relu_().log1p_()
    return weights.log1p_() if config.activation == "log1p_relu" else weights


def _without_zeros(vectors: torch.Tensor) -> SparseVectors:
    rows, indices = vectors.nonzero(as_tuple=True)
    entries = torch.stack([indices.float(), vectors[rows, indices]], dim=1)
    return SparseVectors(vectors.count_nonzero(dim=1).int(), entries)
