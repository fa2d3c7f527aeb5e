"""Sampling on the CPU: sorts only as much of a row as its filters need."""

from bisect import bisect_left
from collections import defaultdict

import numpy as np
import torch

from workers.device.transfer import on_device, to_array, to_device
from workers.sampling.sampling_table import SamplingRows

_WIDTHS = (64, 1024, 2**31)
"""How many of a row's best tokens may be sorted: the first that is at least its top_k, and at most
the vocabulary."""


def draw(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """One token for each row of float32[S, V] logits, int32[S]; -1 for a row that is not finite."""
    highest, tokens = _best(logits)
    for width, group in _by_width(rows, logits.shape[-1]).items():
        drawing = np.array(group)
        chosen = on_device(drawing, logits.device)
        own = logits if len(group) == len(logits) else logits[chosen]
        parameters = rows.subset(drawing)
        if width:
            tokens[chosen] = _draw_from_best(own, parameters, width)
        else:
            tokens[chosen] = _draw_from_all(own, parameters)
    return torch.where(highest.abs() < torch.inf, tokens, -1).int()


def _by_width(rows: SamplingRows, vocabulary: int) -> dict[int, list[int]]:
    """The rows that draw, by how many of their best tokens are sorted for it; 0 is none.

    It depends only on a row's own parameters, so that sums over the width round the same in any
    batch.
    """
    groups: defaultdict[int, list[int]] = defaultdict(list)
    given = rows.parameters
    by_probability = (given["top_p"] < 1) | (given["min_p"] > 0)
    columns = (given["temperature"].tolist(), given["top_k"].tolist(), by_probability.tolist())
    for row, (temperature, top_k, filtered) in enumerate(zip(*columns, strict=True)):
        if temperature <= 0:
            continue
        if 0 < top_k < vocabulary:
            width = min(_WIDTHS[bisect_left(_WIDTHS, top_k)], vocabulary)
        else:
            width = vocabulary if filtered else 0
        groups[width].append(row)
    return groups


def _draw_from_all(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """A token for each row of float32[N, V] without filters: int64[N]."""
    columns = [rows.parameters["temperature"][:, None], rows.uniforms()[:, None]]
    temperature, uniform = to_device(columns, logits.device)
    highest, _ = _best(logits)
    probabilities = ((logits - highest[:, None]) / temperature).softmax(dim=-1)
    cumulative = probabilities.cumsum(dim=-1)
    return _invert(cumulative, cumulative[:, -1:], uniform)[:, 0]


def _draw_from_best(logits: torch.Tensor, rows: SamplingRows, width: int) -> torch.Tensor:
    """A token for each row of float32[N, V], filtered by top-k, top-p and min-p: int64[N].

    Only the `width` highest values are sorted, without their ids, which is cheap; the token is then
    found by the value drawn.
    """
    given = rows.parameters
    top_k, top_p = given["top_k"], given["top_p"]
    last_kept = np.where(top_k > 0, np.minimum(top_k, width), width).astype(np.int64) - 1
    top_p = np.where(top_p < 1, top_p, np.float32(np.inf))
    columns = [given["temperature"], top_p, given["min_p"], rows.uniforms(), last_kept]
    temperature, share, min_p, uniform, last = to_device(
        [column[:, None] for column in columns], logits.device
    )
    best = _largest(logits, width)
    probabilities = ((best - best[:, :1]) / temperature).softmax(dim=-1)
    cumulative = probabilities.cumsum(dim=-1)
    nucleus = torch.searchsorted(cumulative, share * cumulative.gather(1, last))
    last = torch.minimum(nucleus, last)
    if given["min_p"].any():
        probable = (probabilities >= min_p * probabilities[:, :1]).sum(dim=-1, keepdim=True)
        last = torch.minimum(last, probable - 1).clamp_(min=0)  # NaN is never probable
    drawn = _invert(cumulative, cumulative.gather(1, last), uniform)
    value = best.gather(1, drawn)
    return _nth_equal(logits, value, drawn - (best > value).sum(dim=-1, keepdim=True))


def _invert(cumulative: torch.Tensor, total: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The index where the share `uniform` [N, 1] of `total` [N, 1] falls in `cumulative` [N, W],
    int64[N, 1].

    A uniform number is at most 1 - 2^-24, so its product with the total rounds to less than the
    total, and the token at the index has a probability above 0.
    """
    found = torch.searchsorted(cumulative, uniform * total, right=True)
    return found.clamp_(max=cumulative.shape[-1] - 1)  # the sums of a failed row are NaN


# These three use NumPy, whose SIMD loops take at most a tenth of torch's time.


def _best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row's highest logit (or its NaN) and the lowest id that has it, of [N, V]: [N] each."""
    values = to_array(logits)
    ids = values.argmax(axis=-1)
    highest, tokens = to_device([values[np.arange(len(ids)), ids], ids], logits.device)
    return highest, tokens


def _largest(logits: torch.Tensor, width: int) -> torch.Tensor:
    """The `width` highest of each row of [N, V] in descending order, [N, width]."""
    values, rest = to_array(logits), logits.shape[-1] - width
    if rest:
        values = np.partition(values, rest, axis=-1)[:, rest:]
    descending = np.sort(values, axis=-1)[:, ::-1]
    return on_device(np.ascontiguousarray(descending), logits.device)


def _nth_equal(logits: torch.Tensor, value: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    """In each row, the id of the logit number `rank` [N, 1] (from 0) among those equal to `value`
    [N, 1]: int64[N]."""
    equal = to_array(logits) == to_array(value)
    ids = equal.argmax(axis=-1)
    ranks = to_array(rank)[:, 0]
    tied = np.flatnonzero(ranks)
    if len(tied):
        ids[tied] = (equal[tied].cumsum(axis=-1) > ranks[tied, None]).argmax(axis=-1)
    return on_device(ids, logits.device)
