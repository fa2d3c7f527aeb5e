"""The end of an encoder's last stage, by the task: vectors or scores of a step's rows."""

from collections.abc import Callable
from functools import partial

import torch

from workers.contract.config import ExecutionConfig
from workers.contract.messages import ClassifyOutput, EmbedOutput, EmbedSparseOutput
from workers.contract.model_config import PoolingConfig, PoolingMode, SpladeConfig
from workers.heads.base import EncodedRows
from workers.heads.pooling import first_tokens, pool
from workers.heads.splade import sparse_vectors
from workers.models.base import StageModel
from workers.step.packed_step import PackedStep

EncoderHead = Callable[[PackedStep, torch.Tensor], EncodedRows]
"""Queues what makes one step's result of its final hidden states [T', hidden_size]."""


def encoder_head(config: ExecutionConfig, model: StageModel) -> EncoderHead:
    """The head of the task. Raises ValueError for one that needs a decoder."""
    match config.task:
        case "embed":
            return partial(_embed, model, config.model.pooling)
        case "embed_sparse":
            return partial(_embed_sparse, model, config.model.splade)
        case "classify":
            return partial(_classify, model, config.model.classifier_pooling)
        case "generate" | "rerank":
            raise ValueError(f"an encoder cannot {config.task}")


def _embed(
    model: StageModel, pooling: PoolingConfig, step: PackedStep, hidden: torch.Tensor
) -> EncodedRows:
    """One vector a row, and the states of the tokens that are requested, as before the pooling."""
    tensors = {"vectors": model.compute_logits(pool(hidden, step, pooling))}
    if step.state_indices is not None:
        tensors["states"] = hidden.index_select(0, step.state_indices).float()
    return EncodedRows(EmbedOutput, tensors)


def _embed_sparse(
    model: StageModel, pooling: SpladeConfig, step: PackedStep, hidden: torch.Tensor
) -> EncodedRows:
    """One sparse vector a row, of the size of the vocabulary, from the logits of all its tokens."""
    lens = step.query_lens.tolist()
    vectors = sparse_vectors(hidden, lens, model.compute_logits, pooling)
    return EncodedRows(EmbedSparseOutput, vectors._asdict())


def _classify(
    model: StageModel, pooling: PoolingMode, step: PackedStep, hidden: torch.Tensor
) -> EncodedRows:
    """One logit a label for each row, where a rerank score is made, from its pooled states."""
    if pooling == "cls":
        states = first_tokens(hidden, step)
    else:
        states = pool(hidden, step, PoolingConfig(modes=(pooling,))).to(hidden.dtype)
    return EncodedRows(ClassifyOutput, {"logits": model.compute_logits(states).float()})
