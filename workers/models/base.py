"""What a model is to its runner: a stage of an architecture, from hidden to hidden states."""

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import torch

from workers.contract.model_config import ModelConfig
from workers.layers.placement import Placement
from workers.layers.rotary import RotaryEmbedding
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


class StageLayer(Protocol):
    """A layer, in two halves around attention, for any number of tokens."""

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T', hidden_size] -> [T', H + 2 Hkv, D]: queries, keys and values, not turned yet."""
        ...

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest: `hidden` [T', hidden_size], which may be overwritten, and what its queries
        attended to [T', H, D] -> the next layer's hidden states."""
        ...


class StageModel(Protocol):
    """The layers of an architecture that `stage_layers` gives to one stage, with the embedding on
    the first stage and the final norm and head on the last.

    The loader fills `weights()`, then calls `pack()`, once each, before anything is run. `rotary`
    turns queries and keys by their positions, where the architecture has it. `unused` are canonical
    names of tensors that real checkpoints hold and this architecture has no use for: buffers that
    follow from the configuration, heads of other tasks.
    """

    unused: ClassVar[re.Pattern[str]]
    rotary: RotaryEmbedding | None

    def __init__(
        self, config: ModelConfig, stage: int, num_stages: int, placement: Placement
    ) -> None: ...

    @property
    def layers(self) -> Sequence[StageLayer]:
        """This stage's, in order; at least one."""
        ...

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        """First stage: the step's tokens [T'] -> [T', hidden_size]."""
        ...

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """What follows this stage's last layer: on the last stage the final norm."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Last stage: [N, hidden_size] -> logits [N, vocab_size], or scores [N, num_labels] of
        first tokens for a classifier; a dense embedder's states pass unchanged. Padded inside to at
        least four rows on the CPU."""
        ...

    def weights(self) -> dict[str, torch.Tensor]:
        """What this stage needs from a checkpoint: canonical name -> the tensor to fill, which may
        be a view of a larger one (separate projections of a checkpoint are packed here)."""
        ...

    def copies(self) -> Mapping[str, str]:
        """Canonical names under which a checkpoint may hold a weight of this stage a second time ->
        that weight's own."""
        ...

    def pack(self) -> None:
        """Bring the filled weights into the form that is read fastest."""
        ...

    @staticmethod
    def canonical_name(name: str) -> str:
        """A checkpoint's own name of a tensor -> the name that `weights` uses for it."""
        ...
