"""Runs a stage's layers over a step.

If the step's results depend only on the last tokens of its rows, the last layer writes the keys and
values of all tokens, but computes attention and everything after it for the last tokens alone.
"""

import torch

from workers.attention.base import QKV
from workers.attention.stage_attention import StepAttention
from workers.models.base import StageModel
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


def forward(
    model: StageModel,
    step: PagedStep | PackedStep,
    hidden: torch.Tensor | None,
    attention: StepAttention,
) -> torch.Tensor:
    """Run all layers, and on the last stage the final norm.

    `hidden` [T', hidden_size] comes from the stage before (None on the first stage) and may be
    overwritten. Returns the same shape, or [E', hidden_size] if only E last tokens are needed.
    """
    hidden = model.embed(step) if hidden is None else hidden
    last = len(model.layers) - 1
    for index in range(last):
        hidden = run_layer(model, index, hidden, attention)
    qkv = attention.rotate_and_cache(last, model.layers[last].qkv(hidden))
    return finish_last_layer(model, hidden, qkv, attention)


def run_layer(
    model: StageModel, index: int, hidden: torch.Tensor, attention: StepAttention
) -> torch.Tensor:
    """One layer of all tokens: [T', hidden_size] -> the same shape; `hidden` may be overwritten."""
    layer = model.layers[index]
    qkv = attention.rotate_and_cache(index, layer.qkv(hidden))
    return layer.after_attention(hidden, attention.attend(index, qkv))


def finish_last_layer(
    model: StageModel, hidden: torch.Tensor, qkv: QKV, attention: StepAttention
) -> torch.Tensor:
    """The part of `forward` from the last layer's attention on: `hidden` is that layer's input, and
    the queries and keys of `qkv` are rotated."""
    last = len(model.layers) - 1
    hidden, attended = attention.attend_in_last_layer(last, qkv, hidden)
    if not len(hidden):
        return hidden
    return model.final_norm(model.layers[last].after_attention(hidden, attended))
