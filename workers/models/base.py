"""The base classes of models, each one stage of an architecture, and how a step runs through one.

If a step's results depend only on the last tokens of its rows, the last layer computes attention
and all that follows for those alone. Where an encoder pools one token of a row, it goes on from
attention with that one.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F

from workers.attention.distance_vectors import DistanceVectors
from workers.attention.stage_attention import QKV, StepAttention
from workers.contract.checkpoint.architectures import family_of
from workers.contract.model_config import (
    DenseConfig,
    FamilyConfig,
    LayerNormConfig,
    ModelConfig,
    NormalizeConfig,
    TokenOutput,
    VectorModule,
)
from workers.contract.share import Share
from workers.layers.activations import Activation
from workers.layers.layer import Chain, Layer, Placement
from workers.layers.linear import Embedding, Linear, pad_rows
from workers.layers.norm import LayerNorm, QKNorm
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

PartT = TypeVar("PartT")
FamilyT = TypeVar("FamilyT", bound=FamilyConfig)


class StageLayer(Layer, ABC):
    """A layer as two halves, before and after attention, for any number of tokens.

    What it gets and gives, [T', state_size], are hidden states [T', hidden_size], with inputs of
    all layers beside them if the model has such (see `ModelShape.state_size`). `qk_norm` are norms
    of queries and keys before they are rotated, `vectors` those of distances, `sinks` the scores of
    attention sinks, if it has them.
    """

    qk_norm: QKNorm | None = None
    vectors: DistanceVectors | None = None
    sinks: torch.Tensor | None = None

    @abstractmethod
    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T', state_size] -> [T', H + 2 Hkv, D]: queries, keys and values, as projected. Queries
        alone in a layer with another's keys and values."""

    @abstractmethod
    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's input [T', state_size] and the attention output [T', H, D] -> the next
        layer's input. May overwrite `hidden`."""


class StageModel(Layer, ABC):
    """The part of a model that a stage holds: its `share`.

    unused          matches canonical names of tensors that this architecture does not need: buffers
                    that follow from the configuration, and heads of other tasks
    embedding_name  canonical name of the word embedding
    lm_head_name    that of the LM head, which may be tied to it; empty without one
    layers          the stage's layers in order; at least one
    position_bias   [H, 2 * max_position - 1], contiguous: a bias of attention's scores by distance
                    (see `AttentionBackend.plan_packed`), read once the weights are packed
    """

    unused: re.Pattern[str]
    embedding_name: ClassVar[str]
    lm_head_name: ClassVar[str] = ""
    layers: Sequence[StageLayer]
    position_bias: torch.Tensor | None = None

    _final_norm: Activation | None = None

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None:
        self.share = share
        self._tied = config.tie_word_embeddings
        self._build(config, replace(placement, quantization=config.quantization))
        self._head = self._make_head(config, placement) if share.last else None
        self._token_heads = self._make_token_heads(config, placement) if share.last else {}

    @abstractmethod
    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        """First stage: the step's tokens [T'] -> [T', state_size]."""

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """On the last stage [T', state_size] -> final hidden states [T', hidden_size]."""
        return hidden if self._final_norm is None else self._final_norm(hidden)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Last stage: [N, hidden_size] -> logits [N, vocab_size], a classifier's [N, num_labels].

        A dense embedder's are its vectors, float32[N, vector_size] of pooled states. On the CPU
        rows are padded, so that they round the same in any step.
        """
        return on_this_stage(self._head)(pad_rows(hidden))[: len(hidden)]

    def of_tokens(self, output: TokenOutput, states: torch.Tensor) -> torch.Tensor:
        """Last stage: an output of tokens, float32[N, token_size], from their last states
        [N, hidden_size]."""
        head = self._token_heads.get(output)
        return (states if head is None else head(pad_rows(states))[: len(states)]).float()

    def copies(self) -> Mapping[str, str]:
        """Canonical name of a weight's possible second copy -> the weight's own name."""
        if not (self.lm_head_name and self._tied and self.share.last):
            return {}
        return {f"{self.lm_head_name}.weight": f"{self.embedding_name}.weight"}

    def weights(self) -> dict[str, torch.Tensor]:
        copies = self.copies()
        return {copies.get(name, name): weight for name, weight in super().weights().items()}

    @abstractmethod
    def _build(self, config: ModelConfig, placement: Placement) -> None:
        """Create what comes before the head, of the share."""

    def _make_head(self, config: ModelConfig, placement: Placement) -> Activation:
        """The layer of `compute_logits`, here the modules behind a pooling."""
        return vector_modules(config.worker_modules, placement)

    def _make_token_heads(
        self, config: ModelConfig, placement: Placement
    ) -> dict[TokenOutput, Activation]:
        """The layers of `of_tokens`, without one for what is the state itself."""
        modules = config.token_modules.items()
        return {output: vector_modules(own, placement) for output, own in modules}

    def _make_lm_head(
        self, config: ModelConfig, placement: Placement, words: Embedding | None, *, bias: bool
    ) -> Linear:
        """The LM head. Tied to `words`, if these are on this stage, it shares their weight."""
        shared = words.weight if self._tied and words is not None else None
        members = {self.lm_head_name: config.vocab_size}
        return Linear(config.embedding_size, members, placement, bias=bias, tied=shared)


def model_class(architecture: str) -> type[StageModel]:
    """The stage model of an architecture, imported now. Raises ModelConfigError."""
    return resolve_name(family_of(architecture).model_class)


def on_this_stage(part: PartT | None) -> PartT:
    """A part of the first or the last stage alone, used on no other."""
    assert part is not None, "used only on the stage that has it"
    return part


def family_config(config: ModelConfig, kind: type[FamilyT]) -> FamilyT:
    """The family's part of `config`. Raises TypeError for another kind."""
    if not isinstance(config.family, kind):
        raise TypeError(f"{config.architecture} has no {kind.__name__}")
    return config.family


# The modules behind an embedder's pooling.

_LAYER_NORM_EPS = 1e-5
"""torch's default, which the library does not change."""


def vector_modules(configs: Sequence[VectorModule], placement: Placement) -> Chain:
    """sentence-transformers' modules behind a pooling, or of tokens: [R, D] -> float32[R, E].

    Computed in the model's dtype, as the library does. Weights are called `folder/name`.
    """
    links: list[Activation] = []
    for config in configs:
        match config:
            case DenseConfig():
                members = {f"{config.path}/linear".removeprefix("/"): config.out_features}
                links.append(Linear(config.in_features, members, placement, bias=config.bias))
                links.append(getattr(torch.nn, config.activation)())
            case LayerNormConfig():
                norm = f"{config.path}/norm"
                links.append(LayerNorm(norm, config.size, _LAYER_NORM_EPS, placement))
            case NormalizeConfig():
                links.append(partial(F.normalize, dim=-1))
    if not links:
        return Chain()
    return Chain(lambda rows: rows.to(placement.dtype), *links, lambda rows: rows.float())


# A step through the layers.


def forward(
    model: StageModel,
    step: PagedStep | PackedStep,
    hidden: torch.Tensor | None,
    attention: StepAttention,
) -> torch.Tensor:
    """Run all layers, and on the last stage the final norm. `hidden` [T', state_size] of the stage
    before may be overwritten. Returns the same shape, or on the last stage [T', hidden_size], or
    [E', hidden_size] for E last or pooled tokens."""
    hidden = model.embed(step) if hidden is None else hidden
    last = len(model.layers) - 1
    for index in range(last):
        hidden = run_layer(model, index, hidden, attention)
    qkv = attention.rotate_and_cache(last, model.layers[last].qkv(hidden))
    return finish_last_layer(model, hidden, qkv, attention)


def run_layer(
    model: StageModel, index: int, hidden: torch.Tensor, attention: StepAttention
) -> torch.Tensor:
    """One layer of all tokens, [T', state_size] -> the same shape. Overwrites `hidden`."""
    layer = model.layers[index]
    qkv = attention.rotate_and_cache(index, layer.qkv(hidden))
    return layer.after_attention(hidden, attention.attend(index, qkv))


def finish_last_layer(
    model: StageModel, hidden: torch.Tensor, qkv: QKV, attention: StepAttention
) -> torch.Tensor:
    """The end of `forward`, from the attention of the last layer, whose input is `hidden`."""
    last = len(model.layers) - 1
    hidden, attended = attention.attend_in_last_layer(last, qkv, hidden)
    if not len(hidden):
        return hidden
    return model.final_norm(model.layers[last].after_attention(hidden, attended))
