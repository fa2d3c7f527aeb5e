"""From logits to tokens: greedy, or by temperature, top-k, top-p and one uniform number a row.

The uniform number is a pure function of (seed, output index), so neither the batch, nor wasted
rows, nor recomputation, nor the number of stages shifts it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from workers.messages import Logprobs
from workers.step_tensors import IntArray
from workers.transfer import on_device, to_array, to_bytes

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


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
    """One token for each row of float32[S, V] logits, int64[S]; ties go to the lowest id.

    -1 where a row holds NaN or +inf or nothing but -inf; other rows do not notice.
    """
    best, tokens = logits.max(dim=-1)
    drawing = np.flatnonzero(rows.temperature > 0)
    if len(drawing):
        chosen = on_device(drawing, logits.device)
        tokens[chosen] = _draw(logits[chosen] - best[chosen, None], rows.take(drawing))
    return tokens.masked_fill_(~best.isfinite(), -1)


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


def truncation_mask(
    probabilities: torch.Tensor, top_k: npt.NDArray[np.int32], top_p: npt.NDArray[np.float32]
) -> torch.Tensor:
    """Which tokens of float32[N, V] probabilities may be drawn: bool[N, V].

    The `top_k` best (0: all), and of these the fewest whose share reaches `top_p`, at least one;
    among equals the lowest ids.
    """
    device, vocabulary = probabilities.device, probabilities.shape[-1]
    limit = np.where(top_k > 0, np.minimum(top_k, vocabulary), vocabulary).astype(np.int64)
    most, share = on_device(limit, device), on_device(top_p, device)
    ascending = _sorted(probabilities)
    best = ascending.flip(-1)
    reached = best.cumsum(dim=-1)
    mass = reached.gather(1, most[:, None] - 1)
    nucleus = torch.searchsorted(reached, share[:, None] * mass)[:, 0] + 1
    count = torch.minimum(nucleus.where(share < 1, most), most)
    floor = best.gather(1, count[:, None] - 1)
    mask = probabilities >= floor
    # Equals of the last one kept, beyond the count: give up those with the highest ids.
    reaching = vocabulary - torch.searchsorted(ascending, floor)[:, 0]
    tied = (reaching > count).nonzero()[:, 0]
    if len(tied):
        above, equal = (probabilities > floor)[tied], (probabilities == floor)[tied]
        vacant = (count[tied] - above.sum(dim=-1))[:, None]
        mask[tied] = above | (equal & (equal.cumsum(dim=-1) <= vacant))
    return mask


def _sorted(values: torch.Tensor) -> torch.Tensor:
    """Each row of float32[N, V] in ascending order. On the CPU NumPy's SIMD sort takes a fortieth
    of the time of torch's, which carries the indices along."""
    if values.device.type == "cpu":
        return on_device(np.sort(to_array(values), axis=-1), values.device)
    return values.sort(dim=-1).values


def _draw(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """Sample float32[N, V] logits whose maxima are 0 by inverting the cumulative distribution."""
    device = logits.device
    temperature = on_device(np.ascontiguousarray(rows.temperature), device)
    probabilities = (logits / temperature[:, None]).softmax(dim=-1)
    truncated = np.flatnonzero((rows.top_k > 0) | (rows.top_p < 1))
    if len(truncated):
        chosen = on_device(truncated, device)
        whole = probabilities[chosen]
        mask = truncation_mask(whole, rows.top_k[truncated], rows.top_p[truncated])
        probabilities[chosen] = whole * mask
    cumulative = probabilities.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Strictly below the total, so that the token found has a probability above 0.
    highest = total.nextafter(torch.zeros_like(total))
    uniform = on_device(uniforms(rows.seed, rows.index), device)
    point = torch.minimum(uniform[:, None] * total, highest)
    tokens = torch.searchsorted(cumulative, point, right=True)[:, 0]
    return tokens.clamp_(max=logits.shape[-1] - 1)


def _mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
