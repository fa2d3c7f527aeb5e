"""What a model is to its runner: a stage of an architecture, from hidden to hidden states."""

from collections.abc import Callable
from typing import Protocol

import torch

from workers.layers.placement import Placement
from workers.layers.rotary import RotaryEmbedding
from workers.model_config import ModelConfig
from workers.step_tensors import StepTensors

Attend = Callable[[int, torch.Tensor, RotaryEmbedding | None], torch.Tensor]
"""(local layer, heads [T', heads + 2 * kv_heads, dim], rotary) -> [T', heads, dim]: turns queries
and keys by their positions if there is a rotary embedding (and may overwrite them), writes the
cache if there is one, attends by the step's plan, and passes padding rows through as zeros."""


class StageModel(Protocol):
    """The layers of an architecture that `stage_layers` gives to one stage, with the embedding on
    the first stage and the final norm and head on the last.

    The loader fills `weights()`, then calls `pack()`, once each, before anything is run.
    """

    def __init__(
        self, config: ModelConfig, stage: int, num_stages: int, placement: Placement
    ) -> None: ...

    def forward(
        self, step: StepTensors, hidden: torch.Tensor | None, attend: Attend
    ) -> torch.Tensor:
        """`hidden` [T', hidden_size] from the stage before, None on the first. Returns the same
        shape: on the last stage after the final norm."""
        ...

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Last stage: [N, hidden_size] -> logits [N, vocab_size], or scores [N, num_labels] of
        first tokens for a classifier; an embedder's states pass unchanged. Padded inside to at
        least four rows on the CPU."""
        ...

    def weights(self) -> dict[str, torch.Tensor]:
        """What this stage needs from a checkpoint: canonical name -> the tensor to fill, which may
        be a view of a larger one (separate projections of a checkpoint are packed here)."""
        ...

    def pack(self) -> None:
        """Bring the filled weights into the form that is read fastest."""
        ...

    @staticmethod
    def canonical_name(name: str) -> str:
        """A checkpoint's own name of a tensor -> the name that `weights` uses for it."""
        ...
