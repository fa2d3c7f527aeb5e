"""The interface of models: one stage of an architecture."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

import torch

from workers.contract.model_config import ModelConfig
from workers.contract.model_shape import FamilyConfig
from workers.contract.share import Share
from workers.layers.layer import Rows
from workers.layers.norm import QKNorm
from workers.layers.placement import Placement
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

PartT = TypeVar("PartT")
FamilyT = TypeVar("FamilyT", bound=FamilyConfig)


class StageLayer(Protocol):
    """A layer as two halves, before and after attention, for any number of tokens.

    `qk_norm` is applied to queries and keys before they are rotated; most models have none.
    """

    @property
    def qk_norm(self) -> QKNorm | None: ...

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T', hidden_size] -> [T', H + 2 Hkv, D]: queries, keys and values, as projected."""
        ...

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest: the layer's input `hidden` [T', hidden_size], which may be overwritten, and the
        attention output [T', H, D] -> the next layer's input."""
        ...


class StageModel(Protocol):
    """The part of a model that a stage holds: its `Share`.

    The loader fills `weights()`, then calls `pack()`, once each, before the first step. Queries and
    keys are rotated between the layers' halves, by what the configuration says of each kind.
    `unused` matches canonical names of tensors that checkpoints contain but this architecture does
    not need: buffers that follow from the configuration, and heads of other tasks.
    """

    unused: ClassVar[re.Pattern[str]]

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None: ...

    @property
    def share(self) -> Share:
        """The part that this is."""
        ...

    @property
    def position_bias(self) -> torch.Tensor | None:
        """[H, 2 * max_position - 1], contiguous: what attention adds to the scores by the distance
        of two tokens (see `AttentionBackend.plan_packed`), read once the weights are packed; None
        without a learned bias."""
        ...

    @property
    def layers(self) -> Sequence[StageLayer]:
        """The stage's layers in order; at least one."""
        ...

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        """First stage: the step's tokens [T'] -> [T', hidden_size]."""
        ...

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """On the last stage the final norm; elsewhere `hidden` unchanged."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Last stage: [N, hidden_size] -> logits [N, vocab_size], or [N, num_labels] of first
        tokens for a classifier; a dense embedder returns `hidden` unchanged. On the CPU a model
        pads fewer rows to MIN_CPU_ROWS (`workers/layers/linear.py`), so that they round the same in
        any batch."""
        ...

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights that this stage needs: canonical name -> the tensor to fill, which may be a
        view of a larger one (separate projections of a checkpoint are packed here)."""
        ...

    def rows(self) -> Mapping[str, Rows]:
        """Canonical name -> rows, for each weight that is some rows of a checkpoint's tensor."""
        ...

    def copies(self) -> Mapping[str, str]:
        """Canonical name of a possible second copy of a weight of this stage -> the weight's own
        name."""
        ...

    def pack(self) -> None:
        """Convert the filled weights to the layout that is read fastest."""
        ...

    @property
    def canonical_name(self) -> Callable[[str], str]:
        """A checkpoint's own name for a tensor -> the name that `weights` uses."""
        ...


def on_this_stage(part: PartT | None) -> PartT:
    """A part that only the first stage has (the embedding) or the last (the head), and that is
    used on no other."""
    assert part is not None, "used only on the stage that has it"
    return part


def family_config(config: ModelConfig, kind: type[FamilyT]) -> FamilyT:
    """What `config` has for models of this kind. Raises TypeError if it is another kind's."""
    if not isinstance(config.family, kind):
        raise TypeError(f"{config.architecture} has no {kind.__name__}")
    return config.family
