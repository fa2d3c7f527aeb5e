"""The base classes of models: one stage of an architecture."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import ClassVar, TypeVar

import torch

from workers.contract.checkpoint.architectures import family_of
from workers.contract.model_config import FamilyConfig, ModelConfig
from workers.contract.share import Share
from workers.layers.activation import Activation
from workers.layers.embedding import Embedding
from workers.layers.layer import Layer
from workers.layers.linear import Linear, pad_rows
from workers.layers.norm import LayerNorm, QKNorm
from workers.layers.placement import Placement
from workers.models.vector_modules import VectorModules
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

PartT = TypeVar("PartT")
FamilyT = TypeVar("FamilyT", bound=FamilyConfig)


class StageLayer(Layer, ABC):
    """A layer as two halves, before and after attention, for any number of tokens."""

    @property
    def qk_norm(self) -> QKNorm | None:
        """Norms of queries and keys before they are rotated. Most models have none."""
        return None

    @abstractmethod
    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T', hidden_size] -> [T', H + 2 Hkv, D]: queries, keys and values, as projected."""

    @abstractmethod
    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The rest: the layer's input `hidden` [T', hidden_size], which may be overwritten, and the
        attention output [T', H, D] -> the next layer's input."""


class StageModel(Layer, ABC):
    """The part of a model that a stage holds: its `share`.

    The loader fills `weights()`, then calls `pack()`, once each, before the first step. Queries and
    keys are rotated between the layers' halves, by what the configuration says of each kind.

    unused          matches canonical names of tensors that checkpoints contain but this
                    architecture does not need: buffers that follow from the configuration, and
                    heads of other tasks
    embedding_name  canonical name of the word embedding
    lm_head_name    that of the LM head, which may be tied to it; empty without one
    layers          the stage's layers in order; at least one
    """

    unused: ClassVar[re.Pattern[str]]
    embedding_name: ClassVar[str]
    lm_head_name: ClassVar[str] = ""
    layers: Sequence[StageLayer]

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None:
        self.share = share
        self._tied = config.tie_word_embeddings
        self._build(config, placement)
        self._head = self._make_head(config, placement) if share.last else None

    @property
    def position_bias(self) -> torch.Tensor | None:
        """[H, 2 * max_position - 1], contiguous: what attention adds to the scores by the distance
        of two tokens (see `AttentionBackend.plan_packed`), read once the weights are packed; None
        without a learned bias."""
        return None

    @abstractmethod
    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        """First stage: the step's tokens [T'] -> [T', hidden_size]."""

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """On the last stage the final norm; elsewhere `hidden` unchanged."""
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Last stage: [N, hidden_size] -> logits [N, vocab_size], a classifier's [N, num_labels].

        A dense embedder's are its vectors, float32[N, vector_size] of pooled states. On the CPU
        fewer rows are padded to MIN_CPU_ROWS (`workers/layers/linear.py`), so that they round the
        same in any batch.
        """
        return on_this_stage(self._head)(pad_rows(hidden))[: len(hidden)]

    def copies(self) -> Mapping[str, str]:
        """Canonical name of a possible second copy of a weight of this stage -> the weight's own
        name."""
        if not (self.lm_head_name and self._tied and self.share.last):
            return {}
        return {f"{self.lm_head_name}.weight": f"{self.embedding_name}.weight"}

    def weights(self) -> dict[str, torch.Tensor]:
        copies = self.copies()
        return {copies.get(name, name): weight for name, weight in super().weights().items()}

    @abstractmethod
    def _build(self, config: ModelConfig, placement: Placement) -> None:
        """Create what comes before the head, of the share."""

    def _make_head(
        self, config: ModelConfig, placement: Placement
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """A layer that makes `compute_logits`'s result; here the modules behind a pooling."""
        return VectorModules(config.worker_modules, placement)

    def _make_lm_head(
        self, config: ModelConfig, placement: Placement, words: Embedding | None, *, bias: bool
    ) -> Linear:
        """With tied embeddings the LM head shares the weight of `words`; where those are on another
        stage (None), each of the two loads it."""
        shared = words.weight if self._tied and words is not None else None
        members = {self.lm_head_name: config.vocab_size}
        return Linear(config.hidden_size, members, placement, bias=bias, tied=shared)


class TransformedHead(Layer):
    """A head whose `output` product comes behind another, with an activation and perhaps a norm."""

    def __init__(
        self, dense: Linear, function: Activation, norm: LayerNorm | None, output: Linear
    ) -> None:
        self._dense, self._function, self._norm, self._output = dense, function, norm, output

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] -> [N, output features]"""
        states = self._function(self._dense(states))
        return self._output(states if self._norm is None else self._norm(states))


def model_class(architecture: str) -> type[StageModel]:
    """The class of `architecture`'s row in the table of families, imported when a checkpoint of it
    is loaded. Raises UnknownArchitectureError."""
    module, _, attribute = family_of(architecture).model_class.partition(":")
    model: type[StageModel] = getattr(import_module(module), attribute)
    return model


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
