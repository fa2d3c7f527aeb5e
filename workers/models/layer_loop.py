"""A stage's layers over a step.

The last layer's outputs for tokens that no head reads are never computed: where a step's results
depend on the last tokens of its rows alone, that layer writes every token's keys and values, but
attends and goes on with the last tokens only.
"""

import torch

from workers.attention.stage_attention import QKV, StepAttention
from workers.models.base import StageModel
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


def forward(
    model: StageModel,
    step: PagedStep | PackedStep,
    hidden: torch.Tensor | None,
    attention: StepAttention,
) -> torch.Tensor:
    """`hidden` [T', hidden_size] comes from the stage before, None on the first, and may be
    overwritten. Returns the same shape, or [E', hidden_size] where `attention` is for E last tokens
    in the last layer; on the last stage after the final norm."""
    hidden = model.embed(step) if hidden is None else hidden
    last = len(model.layers) - 1
    for index, layer in enumerate(model.layers[:last]):
        heads = attention.rotate_and_cache(index, layer.qkv(hidden))
        hidden = layer.after_attention(hidden, attention.attend(index, heads))
    heads = attention.rotate_and_cache(last, model.layers[last].qkv(hidden))
    return finish_last_layer(model, hidden, heads, attention)


def finish_last_layer(
    model: StageModel, hidden: torch.Tensor, heads: QKV, attention: StepAttention
) -> torch.Tensor:
    """What `forward` does from the last layer's attention on: `hidden` is that layer's input, and
    `heads` are its rotated heads."""
    last = len(model.layers) - 1
    hidden, attended = attention.attend_in_last_layer(last, heads, hidden)
    if not len(hidden):
        return hidden
    return model.final_norm(model.layers[last].after_attention(hidden, attended))
