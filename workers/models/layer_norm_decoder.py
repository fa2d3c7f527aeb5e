"""Decoders with LayerNorms, whose blocks may run side by side and need no gate, such as GPT-2 and
Command-R. `LayerNormDecoderConfig` says what differs between them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from workers.contract.model_config import LayerNormDecoderConfig, ModelConfig
from workers.layers.layer import Placement
from workers.layers.linear import Embedding, Linear
from workers.layers.norm import LayerNorm
from workers.models.base import StageLayer, family_config, on_this_stage
from workers.models.decoder import (
    DecoderForCausalLM,
    DecoderForSequenceClassification,
    DecoderModel,
    qkv_product,
)
from workers.models.feed_forward import feed_forward
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


def _norms(config: ModelConfig, placement: Placement) -> Callable[[str], LayerNorm]:
    """(name) -> a norm of the family's kind."""
    family = family_config(config, LayerNormDecoderConfig)
    return partial(
        LayerNorm,
        size=config.hidden_size,
        eps=family.norm_eps,
        placement=placement,
        bias=family.norm_bias,
        unit_offset=family.unit_offset_norms,
    )


class LayerNormDecoderLayer(StageLayer):
    """Attention and a feed-forward network. Each normalises its input and adds its output to it;
    side by side, both have the layer's input."""

    def __init__(self, config: ModelConfig, layer: int, placement: Placement) -> None:
        family, size = family_config(config, LayerNormDecoderConfig), config.hidden_size
        name, norm = f"model.layers.{layer}", _norms(config, placement)
        self._head_dim, self._parallel = config.head_dim, family.parallel
        self._input_norm = norm(f"{name}.input_layernorm")
        after = f"{name}.post_attention_layernorm"
        self._mlp_norm = None if family.shared_norm else norm(after)
        self._qkv = qkv_product(config, family, layer, placement)
        width, output = config.num_heads * config.head_dim, {f"{name}.self_attn.o_proj": size}
        self._output = Linear(width, output, placement, bias=family.output_bias)
        self._mlp = feed_forward(config, family, layer, placement)

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._qkv(self._input_norm(hidden)).view(len(hidden), -1, self._head_dim)

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        norm = self._mlp_norm or self._input_norm
        rows = norm(hidden) if self._parallel else None
        hidden = self._output.add_to(hidden, attended.flatten(1))
        return self._mlp.add_to(hidden, norm(hidden) if rows is None else rows)


class LayerNormDecoderModel(DecoderModel):
    """One stage of such a decoder without an LM head (see `DecoderModel`)."""

    def _build(self, config: ModelConfig, placement: Placement) -> None:
        family, size = family_config(config, LayerNormDecoderConfig), config.hidden_size
        share, own = self.share, replace(placement, transposed=family.transposed)
        self._embedding = self._positions = None
        if share.first:
            self._embedding = Embedding(self.embedding_name, config.vocab_size, size, placement)
        if share.first and family.learned_positions:
            positions = config.max_position
            self._positions = Embedding("model.embed_positions", positions, size, placement)
        self.layers = [LayerNormDecoderLayer(config, layer, own) for layer in share.layers]
        self._final_norm = _norms(config, placement)("model.norm") if share.last else None

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        words = on_this_stage(self._embedding)(step.tokens)
        return words if self._positions is None else words.add_(self._positions(step.positions))


class LayerNormDecoderForCausalLM(LayerNormDecoderModel, DecoderForCausalLM):
    """One stage of such a decoder with its LM head."""


class LayerNormDecoderForSequenceClassification(
    LayerNormDecoderModel, DecoderForSequenceClassification
):
    """One stage of such a decoder with a classifier."""
