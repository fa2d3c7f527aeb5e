"""From logits to tokens and their log-probabilities. Each row draws by one uniform number."""

from bisect import bisect_left
from collections import defaultdict
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from workers.contract.messages import SlotInit
from workers.contract.token_sampling import GREEDY, TokenBias, TokenSampling
from workers.device.transfer import on_device, to_array, to_device
from workers.sampling.reading import ReadTokens, read_logits
from workers.sampling.sampling_table import (
    Adjustments,
    FloatArray,
    SamplingRows,
    SamplingTable,
    TokenCounts,
    TokenMask,
)

_SAMPLINGS = (GREEDY, TokenSampling(), TokenSampling(top_p=0.9))

_WIDTHS = (64, 1024, 2**31)
"""Numbers of a row's best tokens that are sorted: the first that reaches its top_k."""


def sample(
    logits: torch.Tensor, rows: SamplingRows, counts: TokenCounts, mask: TokenMask | None = None
) -> torch.Tensor:
    """One token for each row of [S, V] logits, int32[S] on their device. `logits` stay unchanged.

    Adjusts logits by `mask`, biases and penalties, then samples as `TokenSampling` says. Tokens
    sampled for penalised rows are added to `counts`. A row that holds NaN, +inf or only -inf gets
    -1; other rows are not affected.

    On the CPU logits are float32. On a GPU they may have any float dtype, the host does not wait,
    and tokens equal the CPU's, but where sums round differently at an edge.
    """
    adjustments = rows.adjustments(mask)
    if logits.device.type == "cpu":
        adjusted = logits if adjustments is None else adjust(logits, adjustments, counts, mask)
        tokens = draw(adjusted, rows)
    else:
        # Imported here, because a CPU host may have no Triton.
        from workers.sampling import cuda  # noqa: PLC0415

        tokens = cuda.sample(logits, rows, adjustments, counts, mask)
    if adjustments is not None:
        _count(tokens, adjustments, counts)
    return tokens


def _count(tokens: torch.Tensor, adjustments: Adjustments, counts: TokenCounts) -> None:
    counted = adjustments.counted
    if len(counted):
        columns = [adjustments.slots[counted], adjustments.rows[counted]]
        slots, rows = to_device([column.astype(np.int64) for column in columns], tokens.device)
        counts.add(slots, tokens[rows].long())


class TokenLogprobs(NamedTuple):
    """Fields of `workers.contract.messages.Logprobs` as tensors, without the ranks.

    chosen   float32[N]
    top_ids  int32[N, width]
    top      float32[N, width]
    """

    chosen: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor


def log_probabilities(logits: torch.Tensor, tokens: torch.Tensor, width: int) -> TokenLogprobs:
    """Log-probabilities of `tokens` integer[N], and of the `width` best tokens, by [N, V] logits.
    In a failed row, whose token is -1, all are NaN."""
    if logits.device.type != "cpu":
        from workers.sampling import cuda  # noqa: PLC0415

        return cuda.log_probabilities(logits, tokens, width)
    normalised = logits.log_softmax(dim=-1)
    chosen = normalised.gather(1, tokens.long().clamp(min=0)[:, None])
    top, top_ids = normalised.topk(width, dim=-1)
    return TokenLogprobs(chosen[:, 0], top_ids.int(), top)


def ranks(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The rank of `tokens` integer[N] by [N, V] logits, int32[N]. 1 is the most probable token.
    Equal logits share the best rank."""
    own = logits.gather(1, tokens.long().clamp(min=0)[:, None])
    return (logits > own).sum(dim=-1, dtype=torch.int32) + 1


def warm_up_sampling(logits: torch.Tensor, table: SamplingTable) -> None:
    """Sample `logits` [1, V] of the model's dtype in every combination that launches other kernels.
    Overwrites slot 0 of `table`."""
    words = torch.full((1, -(-logits.shape[1] // 32)), -1, dtype=torch.int32, device=logits.device)
    everything = TokenMask(np.zeros(1, np.int32), lambda: words)
    slots, contexts = np.zeros(1, np.int32), np.ones(1, np.int32)
    kinds = product(_SAMPLINGS, (False, True), (False, True), (None, everything))
    for sampling, biased, penalised, mask in kinds:
        init = SlotInit(
            slot=0,
            prompt_len=1,
            seed=0,
            sampling=msgspec.structs.replace(sampling, presence_penalty=float(penalised)),
            known_tokens=bytes(4) if penalised else b"",
            bias=TokenBias(bytes(4), bytes(4)) if biased else TokenBias(),
        )
        table.update([init])
        sample(logits, table.rows(slots, contexts), table.counts, mask)
    log_probabilities(logits, torch.zeros(1, dtype=torch.int32, device=logits.device), 1)
    first = torch.zeros(1, dtype=torch.int64, device=logits.device)
    read_logits(logits, ReadTokens(first, first, first))


# On the CPU.


def adjust(
    logits: torch.Tensor, adjustments: Adjustments, counts: TokenCounts, mask: TokenMask | None
) -> torch.Tensor:
    """The adjusted logits, float32[S, V]. `logits` stay unchanged."""
    changed = to_array(logits).copy()
    if mask is not None:
        words, size = to_array(mask.words()).view(np.uint8), changed.shape[1]
        for row, own in zip(mask.rows.tolist(), words, strict=True):
            allowed = np.unpackbits(own, bitorder="little", count=size)
            changed[row, allowed == 0] = -np.inf
    if adjustments.biases:
        index, ids, values = adjustments.biases
        changed[adjustments.rows[index], ids] += values
    for index in adjustments.counted.tolist():
        seen = to_array(counts.table)[adjustments.slots[index]]
        _penalise(changed[adjustments.rows[index]], seen, adjustments.penalties[:, index])
    return on_device(changed, logits.device)


def _penalise(values: FloatArray, seen: npt.NDArray[np.int16], penalties: FloatArray) -> None:
    """Apply presence, frequency and repetition penalties to one row's `values` [V], by its counts
    `seen` [V]."""
    presence, frequency, repetition = penalties
    ids = np.flatnonzero(seen)
    logits, sampled = values[ids], (seen[ids] >> 1).astype(np.float32)
    logits = np.where(logits > 0, logits / repetition, logits * repetition)
    logits -= frequency * sampled
    values[ids] = logits - presence * (sampled > 0)


# Only as much of a row is sorted as its filters need.


def draw(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """One token for each row of float32[S, V] logits, int32[S]. -1 for a row that is not finite."""
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
    """The rows that draw, by how many of their best tokens are sorted. A row's own parameters alone
    decide, so that sums over the width round the same in any step."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    given = rows.parameters
    by_probability = (given["top_p"] < 1) | (given["min_p"] > 0)
    columns = (given["temperature"].tolist(), given["top_k"].tolist(), by_probability.tolist())
    for row, (temperature, top_k, filtered) in enumerate(zip(*columns, strict=True)):
        width = vocabulary if filtered else 0
        if 0 < top_k < vocabulary:
            width = min(_WIDTHS[bisect_left(_WIDTHS, top_k)], vocabulary)
        if temperature > 0:
            groups[width].append(row)
    return groups


def _draw_from_all(logits: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """A token for each row of float32[N, V] without filters: int64[N]."""
    columns = rows.parameters["temperature"], rows.uniforms()
    temperature, uniform = to_device([column[:, None] for column in columns], logits.device)
    highest, _ = _best(logits)
    probabilities = ((logits - highest[:, None]) / temperature).softmax(dim=-1)
    cumulative = probabilities.cumsum(dim=-1)
    return _invert(cumulative, cumulative[:, -1:], uniform)[:, 0]


def _draw_from_best(logits: torch.Tensor, rows: SamplingRows, width: int) -> torch.Tensor:
    """A token for each row of float32[N, V], filtered by top-k, top-p and min-p: int64[N].

    Only the `width` highest values are sorted. The token is found by the value drawn.
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
    int64[N, 1]: of a probability above 0. Since a uniform number is at most 1 - 2^-24, its product
    with the total rounds to less than that.
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
    """Each row's id number `rank` [N, 1] (from 0) whose logit is `value` [N, 1]: int64[N]."""
    equal = to_array(logits) == to_array(value)
    ids = equal.argmax(axis=-1)
    ranks = to_array(rank)[:, 0]
    tied = np.flatnonzero(ranks)
    if len(tied):
        ids[tied] = (equal[tied].cumsum(axis=-1) > ranks[tied, None]).argmax(axis=-1)
    return on_device(ids, logits.device)
