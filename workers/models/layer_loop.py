"""A stage's layers over a step.

What only the last layer's other tokens are for, nobody reads: where a step's result depends on the
ends of its rows alone, that layer writes every token's keys and values, and attends and goes on
with the ends.
"""

import torch

from workers.attention.stage_attention import QKV, StepAttention
from workers.models.base import StageModel
from workers.step.tensors import Ends, StepTensors


def forward(
    model: StageModel,
    step: StepTensors,
    hidden: torch.Tensor | None,
    attention: StepAttention,
    ends: Ends | None = None,
) -> torch.Tensor:
    """`hidden` [T', hidden_size] comes from the stage before, None on the first, and may be
    overwritten. Returns the same shape, or [E', hidden_size] of `ends` alone; on the last stage
    after the final norm."""
    hidden = model.embed(step) if hidden is None else hidden
    last = len(model.layers) - 1
    for index, layer in enumerate(model.layers[:last]):
        heads = attention.rotate_and_cache(index, layer.qkv(hidden))
        hidden = layer.after_attention(hidden, attention.attend(index, heads))
    heads = attention.rotate_and_cache(last, model.layers[last].qkv(hidden))
    return finish_last_layer(model, hidden, heads, attention, ends)


def finish_last_layer(
    model: StageModel,
    hidden: torch.Tensor,
    heads: QKV,
    attention: StepAttention,
    ends: Ends | None,
) -> torch.Tensor:
    """What `forward` does from the last layer's attention on: `hidden` and its rotated `heads` are
    of that layer."""
    last = len(model.layers) - 1
    if ends is None:
        attended = attention.attend(last, heads)
    else:
        attended = attention.attend_last_tokens(last, heads, ends)
        hidden = hidden.index_select(0, ends.positions)
    if not len(hidden):
        return hidden
    return model.final_norm(model.layers[last].after_attention(hidden, attended))
