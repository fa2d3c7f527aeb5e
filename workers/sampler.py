"""From logits to tokens: greedy, or by temperature, top-k, top-p and one uniform number a row.

The uniform number is a pure function of (seed, output index), so neither the batch, nor wasted
rows, nor recomputation, nor the number of stages shifts it.
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from workers.messages import Logprobs
from workers.step_tensors import IntArray
from workers.transfer import on_device, to_array, to_bytes, to_device

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)

_WIDTHS = (64, 1024, 2**31)
"""How many of a row's best tokens are put in order, at least its top_k (at most the vocabulary)."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Parameters of S rows, [S] each; `index` counts a row's sampled tokens from 0."""

    temperature: npt.NDArray[np.float32]
    top_k: npt.NDArray[np.int32]
    top_p: npt.NDArray[np.float32]
    seed: npt.NDArray[np.uint64]
    index: IntArray

    def take(self, rows: npt.NDArray[np.intp]) -> "SamplingRows":
        """The parameters of some of the rows."""
        return SamplingRows(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.seed[rows],
            self.index[rows],
        )


def sample(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """One token for each row of float32[S, V] logits, int64[S].

    Without a temperature the best, else one of the `top_k` best (0: all), and of these of the
    fewest whose share reaches `top_p`, at least one; among equals the lowest ids are the best.
    -1 where a row holds NaN or +inf or nothing but -inf; other rows do not notice.
    """
    highest, tokens = _best(logits)
    for width, group in _by_width(rows, logits.shape[-1]).items():
        drawing = np.array(group)
        chosen = on_device(drawing, logits.device)
        own = logits if len(group) == len(logits) else logits[chosen]
        parameters = rows.take(drawing)
        if width:
            tokens[chosen] = _draw_from_best(own, parameters, width)
        else:
            tokens[chosen] = _draw_from_all(own, parameters)
    return torch.where(highest.abs() < torch.inf, tokens, -1)


def log_probabilities(logits: torch.Tensor, tokens: torch.Tensor, width: int) -> Logprobs:
    """Of `tokens` int64[N] under float32[N, V] logits, beside the `width` best alternatives.

    A token of -1 (a failed row) is reported as NaN, like everything else in its row.
    """
    normalised = logits.log_softmax(dim=-1)
    chosen = normalised.gather(1, tokens.clamp(min=0)[:, None])
    top, top_ids = normalised.topk(width, dim=-1)
    return Logprobs(
        width=width,
        chosen=to_bytes(chosen),
        top_ids=to_bytes(top_ids.int()),
        top=to_bytes(top),
    )


def uniforms(seed: npt.NDArray[np.uint64], index: IntArray) -> npt.NDArray[np.float32]:
    """Number `index` of each row's stream, float32[S] in [0, 1).

    SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), whose
    state is a counter; the seed is mixed first so that neighbouring seeds share no stream.
    """
    counter = (index.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
    bits = _mix(_mix(seed) + counter)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def _by_width(rows: SamplingRows, vocabulary: int) -> dict[int, list[int]]:
    """The rows that draw, by how many of their best tokens are put in order for it: 0 for none.

    By a row's own parameters alone: sums over a width round alike whatever else is in the batch.
    """
    groups: defaultdict[int, list[int]] = defaultdict(list)
    columns = (rows.temperature.tolist(), rows.top_k.tolist(), rows.top_p.tolist())
    for row, (temperature, top_k, top_p) in enumerate(zip(*columns, strict=True)):
        if temperature <= 0:
            continue
        if top_k > 0:
            width = min(_WIDTHS[bisect_left(_WIDTHS, top_k)], vocabulary)
        else:
            width = vocabulary if top_p < 1 else 0
        groups[width].append(row)
    return groups


def _draw_from_all(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """A token for each row of float32[N, V], by the softmax over all of them: int64[N]."""
    columns = [rows.temperature[:, None], uniforms(rows.seed, rows.index)[:, None]]
    temperature, uniform = to_device(columns, logits.device)
    highest, _ = _best(logits)
    probabilities = ((logits - highest[:, None]) / temperature).softmax(dim=-1)
    cumulative = probabilities.cumsum(dim=-1)
    return _invert(cumulative, cumulative[:, -1:], uniform)[:, 0]


def _draw_from_best(logits: torch.Tensor, rows: SamplingRows, width: int) -> torch.Tensor:
    """The same over the best of each row, at most `width`, by `top_k` and `top_p`.

    Sorting values alone is cheap; the token is then found by the value drawn.
    """
    most = np.where(rows.top_k > 0, np.minimum(rows.top_k, width), width).astype(np.int64)
    top_p = np.where(rows.top_p < 1, rows.top_p, np.float32(np.inf))
    columns = [rows.temperature, top_p, uniforms(rows.seed, rows.index), most - 1]
    temperature, share, uniform, last = to_device([c[:, None] for c in columns], logits.device)
    best = _largest(logits, width)
    probabilities = ((best - best[:, :1]) / temperature).softmax(dim=-1)
    cumulative = probabilities.cumsum(dim=-1)
    nucleus = torch.searchsorted(cumulative, share * cumulative.gather(1, last))
    last = torch.minimum(nucleus, last)
    drawn = _invert(cumulative, cumulative.gather(1, last), uniform)
    value = best.gather(1, drawn)
    return _nth_equal(logits, value, drawn - (best > value).sum(dim=-1, keepdim=True))


def _invert(cumulative: torch.Tensor, total: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Where the share `uniform` [N, 1] of `total` [N, 1] falls in float32[N, W]: int64[N, 1].

    A uniform number is at most 1 - 2^-24, so its product with the total rounds to less than the
    total, and what is found has a probability above 0.
    """
    found = torch.searchsorted(cumulative, uniform * total, right=True)
    return found.clamp_(max=cumulative.shape[-1] - 1)  # the sums of a failed row are NaN


# On the CPU these three are NumPy's, whose SIMD loops take a tenth of torch's time and less.


def _best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest of each row of [N, V], or its NaN, and the first id that has it: [N] each."""
    if logits.device.type != "cpu":
        highest, ids = logits.max(dim=-1)
        return highest, ids
    values = to_array(logits)
    ids = values.argmax(axis=-1)
    highest, tokens = to_device([values[np.arange(len(ids)), ids], ids], logits.device)
    return highest, tokens


def _largest(logits: torch.Tensor, width: int) -> torch.Tensor:
    """The `width` highest of each row of [N, V] in descending order, [N, width]."""
    if logits.device.type != "cpu":
        return logits.topk(width, dim=-1).values
    values, rest = to_array(logits), logits.shape[-1] - width
    if rest:
        values = np.partition(values, rest, axis=-1)[:, rest:]
    descending = np.sort(values, axis=-1)[:, ::-1]
    return on_device(np.ascontiguousarray(descending), logits.device)


def _nth_equal(logits: torch.Tensor, value: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    """The id of number `rank` [N, 1], from 0, of each row's equals of `value` [N, 1]: int64[N]."""
    if logits.device.type != "cpu":
        return torch.searchsorted((logits == value).cumsum(dim=-1), rank + 1)[:, 0]
    equal = to_array(logits) == to_array(value)
    ids = equal.argmax(axis=-1)
    ranks = to_array(rank)[:, 0]
    tied = np.flatnonzero(ranks)
    if len(tied):
        ids[tied] = (equal[tied].cumsum(axis=-1) > ranks[tied, None]).argmax(axis=-1)
    return on_device(ids, logits.device)


def _mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
