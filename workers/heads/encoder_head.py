"""The end of an encoder's last stage, by the task: vectors or scores of a step's rows. The API
process shortens and normalises vectors (`server/api/embeddings.py`)."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from workers.contract.config import ExecutionConfig
from workers.contract.messages import ClassifyOutput, EmbedOutput, EmbedSparseOutput
from workers.contract.model_config import PoolingConfig, PoolingMode, SpladeConfig
from workers.heads.base import HeadResult
from workers.models.base import StageModel
from workers.step.packed_step import PackedStep

EncoderHead = Callable[[PackedStep, torch.Tensor], HeadResult]
"""Queues the work on one step's final hidden states [T', hidden_size], or on those of the tokens
`PackedStep.read`."""


def pooling_modes(config: ExecutionConfig) -> tuple[PoolingMode, ...]:
    """How the head of the task pools final states. Empty if it reads those of all tokens."""
    match config.task:
        case "embed":
            return config.model.pooling.modes
        case "classify":
            return (config.model.classifier_pooling,)
        case _:
            return ()


def encoder_head(config: ExecutionConfig, model: StageModel) -> EncoderHead:
    """The head of the task. Raises ValueError for one that needs a decoder."""
    match config.task:
        case "embed":
            return partial(_embed, model, config.model.pooling)
        case "embed_tokens" | "classify_tokens":
            return partial(_embed, model, None)
        case "embed_sparse":
            return partial(_embed_sparse, model, config.model.splade)
        case "classify":
            return partial(_classify, model, config.model.classifier_pooling)
        case "generate" | "rerank":
            raise ValueError(f"an encoder cannot {config.task}")


def _embed(
    model: StageModel, pooling: PoolingConfig | None, step: PackedStep, hidden: torch.Tensor
) -> HeadResult:
    """Outputs of tokens that are requested, of their states before the pooling. A model that has a
    `pooling` adds one vector a row."""
    tokens = {
        output: model.of_tokens(output, hidden.index_select(0, indices))
        for output, indices in step.requested.items()
    }
    fields: dict[str, torch.Tensor | HeadResult] = {"tokens": HeadResult(dict, tokens)}
    if pooling is not None:
        fields["vectors"] = model.compute_logits(pool(hidden, step, pooling))
    return HeadResult(EmbedOutput, fields)


def _embed_sparse(
    model: StageModel, pooling: SpladeConfig, step: PackedStep, hidden: torch.Tensor
) -> HeadResult:
    """One sparse vector a row, from the logits of all its tokens."""
    vectors = sparse_vectors(hidden, step.query_lens.tolist(), model.compute_logits, pooling)
    return HeadResult(EmbedSparseOutput, vectors._asdict())


def _classify(
    model: StageModel, pooling: PoolingMode, step: PackedStep, hidden: torch.Tensor
) -> HeadResult:
    """One logit a label for each row, where a rerank score is made, from its pooled states."""
    states = _pool(hidden, step, pooling).to(hidden.dtype)
    return HeadResult(ClassifyOutput, {"logits": model.compute_logits(states).float()})


# From token states to one vector a row: sentence-transformers' Pooling module.


def pool(hidden: torch.Tensor, step: PackedStep, config: PoolingConfig) -> torch.Tensor:
    """Pool `hidden` [T', D] -> float32[R, modes * D], not normalised. NaN stays in its row. Rows
    have more tokens than `step.unpooled_lens`; the step was made for these modes."""
    vectors = [_pool(hidden, step, mode) for mode in config.modes]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)


def _pool(hidden: torch.Tensor, step: PackedStep, mode: PoolingMode) -> torch.Tensor:
    match mode:
        case "cls" | "lasttoken":
            states = hidden if step.read is not None else hidden.index_select(0, step.pooled[mode])
            return states[: len(step.query_lens)].float()
        case "max":
            return _max(hidden, step)
        case _ if hidden.is_cuda:
            # Imported here, because a machine without a GPU may have no Triton.
            from workers.kernels.pooling import average  # noqa: PLC0415

            return average(hidden, step.query_starts, step.unpooled_lens, mode)
        case "mean":
            return _sums(hidden, step) / _num_pooled(step)
        case "mean_sqrt_len_tokens":
            return _sums(hidden, step) / _num_pooled(step).sqrt()
        case "weightedmean":
            return _weighted_mean(hidden, step)


def _max(hidden: torch.Tensor, step: PackedStep) -> torch.Tensor:
    rows = _row_of_token(step.row_lens, step.num_tokens)
    states = _without_prompts(hidden[: step.num_tokens].float(), step, rows, -torch.inf)
    lowest = states.new_full((len(step.query_lens), states.shape[1]), -torch.inf)
    return lowest.scatter_reduce_(0, rows[:, None].expand_as(states), states, "amax")


def _weighted_mean(hidden: torch.Tensor, step: PackedStep) -> torch.Tensor:
    """A token's weight is its place in the row, from 1, with any prompt that is not pooled."""
    places = step.positions[: step.num_tokens].float() + 1
    length = step.row_lens[:, None].float()
    weights = length * (length + 1) / 2
    if step.unpooled_lens is not None:
        prompt = step.unpooled_lens[:, None].float()
        weights -= prompt * (prompt + 1) / 2
    return _sums(hidden, step, places) / weights


def _sums(
    hidden: torch.Tensor, step: PackedStep, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Each row's sum of its pooled tokens, float32[R, D], with `weights` float32[T], in order: it
    does not depend on the row's neighbours."""
    states = hidden[: step.num_tokens].float()
    rows = _row_of_token(step.row_lens, step.num_tokens)
    if weights is not None:
        states = states * weights[:, None]
    states = _without_prompts(states, step, rows, 0.0)
    sums = states.new_zeros((len(step.query_lens), states.shape[1]))
    return sums.index_add_(0, rows, states)


def _row_of_token(lens: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """The row of each token, int64[num_tokens], of rows of `lens` tokens."""
    rows = torch.arange(len(lens), device=lens.device)
    return torch.repeat_interleave(rows, lens, output_size=num_tokens)


def _num_pooled(step: PackedStep) -> torch.Tensor:
    """How many tokens of each row are pooled, float32[R, 1]."""
    lens = step.row_lens if step.unpooled_lens is None else step.row_lens - step.unpooled_lens
    return lens[:, None].float()


def _without_prompts(
    states: torch.Tensor, step: PackedStep, rows: torch.Tensor, value: float
) -> torch.Tensor:
    """`states` [T, D], those of unpooled tokens replaced by `value`, with the `rows` of tokens."""
    if step.unpooled_lens is None:
        return states
    left_out = step.positions[: step.num_tokens] < step.unpooled_lens[rows]
    return states.masked_fill(left_out[:, None], value)


# SPLADE pooling: one sparse vector a text, of the size of the vocabulary (Formal et al. 2021,
# arXiv:2107.05720, with the sum over tokens; arXiv:2109.10086, with the maximum).

TOKENS_AT_ONCE = 512
"""The most tokens, or rows, with logits at once: times a vocabulary, tens of megabytes."""


class SparseVectors(NamedTuple):
    """R sparse vectors, as in `EmbedSparseOutput`: counts int32[R], entries float32[E, 2], which
    hold every integer up to 2**24."""

    counts: torch.Tensor
    entries: torch.Tensor


def sparse_vectors(
    hidden: torch.Tensor,
    lens: Sequence[int],
    logits: Callable[[torch.Tensor], torch.Tensor],
    config: SpladeConfig,
) -> SparseVectors:
    """Pool rows of `lens` tokens, the first of the final states `hidden` [T', D].

    `logits` maps [N, D] -> [N, V]. NaN stays in its row, as an entry. On CUDA the host waits: it
    has to know the number of entries.
    """
    portions = [*_portions(lens)]
    states = torch.split(hidden[: sum(lens)], [*map(sum, portions)])
    pooled = [
        _without_zeros(_pooled(own, portion, logits, config))
        for own, portion in zip(states, portions, strict=True)
    ]
    return SparseVectors(*map(torch.cat, zip(*pooled, strict=True)))


def _portions(lens: Sequence[int]) -> Iterator[list[int]]:
    """Rows in order, in portions of at most TOKENS_AT_ONCE tokens, or of one row."""
    portion: list[int] = []
    room = TOKENS_AT_ONCE
    for length in lens:
        if portion and length > room:
            yield portion
            portion, room = [], TOKENS_AT_ONCE
        portion.append(length)
        room -= length
    yield portion


def _pooled(
    states: torch.Tensor,
    lens: list[int],
    logits: Callable[[torch.Tensor], torch.Tensor],
    config: SpladeConfig,
) -> torch.Tensor:
    """float32[R, V]"""
    row_of_token = _row_of_token(torch.tensor(lens, device=states.device), len(states))
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
