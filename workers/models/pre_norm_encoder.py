"""Encoders whose blocks normalise their input, with a gated feed-forward network and rotary
positions, such as ModernBERT: alone, with a classifier, or with the LM head of a masked language
model. Weights are called as in ModernBERT's checkpoints, without the prefix "model."."""

import re

import torch

from workers.contract.model_config import ModelConfig, PreNormEncoderConfig
from workers.layers.activation import activation
from workers.layers.embedding import Embedding
from workers.layers.gated_linear import GatedLinear
from workers.layers.layer import Layer
from workers.layers.linear import Linear
from workers.layers.norm import LayerNorm
from workers.layers.placement import Placement
from workers.models.base import (
    StageLayer,
    StageModel,
    TransformedHead,
    family_config,
    on_this_stage,
)
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

_WORDS = "embeddings.tok_embeddings"


class PreNormEncoderEmbeddings(Layer):
    """Token embeddings, normalised."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        self.words = Embedding(_WORDS, config.vocab_size, config.hidden_size, placement)
        self._norm = _norm("embeddings.norm", config, placement)

    def __call__(self, step: PagedStep | PackedStep) -> torch.Tensor:
        """[T', hidden_size]"""
        return self._norm(self.words(step.tokens))


class PreNormEncoderLayer(StageLayer):
    """Attention and a gated feed-forward network. Each normalises its input and adds its output to
    it (see `StageLayer`). The first layer's attention has no norm: its input is normalised."""

    def __init__(self, config: ModelConfig, index: int, placement: Placement) -> None:
        family, name = family_config(config, PreNormEncoderConfig), f"layers.{index}"
        size, inner = config.hidden_size, config.intermediate_size
        self._head_dim = config.head_dim
        bias, qkv, output = family.attention_bias, f"{name}.attn.Wqkv", f"{name}.attn.Wo"
        self._attention_norm = _norm(f"{name}.attn_norm", config, placement) if index else None
        self._qkv = Linear(size, {qkv: 3 * size}, placement, bias=bias)
        self._output = Linear(size, {output: size}, placement, bias=bias)
        self._mlp_norm = _norm(f"{name}.mlp_norm", config, placement)
        bias, down, members = family.mlp_bias, f"{name}.mlp.Wo", {f"{name}.mlp.Wi": 2 * inner}
        self._gate_up = GatedLinear(
            size, members, activation(family.hidden_act), placement, bias=bias
        )
        self._down = Linear(inner, {down: size}, placement, bias=bias)

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = hidden if self._attention_norm is None else self._attention_norm(hidden)
        return self._qkv(normed).view(len(hidden), -1, self._head_dim)

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = self._output.add_to(hidden, attended.flatten(1))
        return self._down.add_to(hidden, self._gate_up.activated(self._mlp_norm(hidden)))


class PreNormEncoderModel(StageModel):
    """One stage of an encoder (see `StageModel`), whose states are pooled."""

    unused = re.compile(r"(head|decoder|classifier)\..*")
    embedding_name = _WORDS

    def _build(self, config: ModelConfig, placement: Placement) -> None:
        share = self.share
        self._embeddings = PreNormEncoderEmbeddings(config, placement) if share.first else None
        self.layers = [PreNormEncoderLayer(config, i, placement) for i in share.layers]
        self._final_norm = _norm("final_norm", config, placement) if share.last else None

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        return on_this_stage(self._embeddings)(step)

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self._final_norm is None else self._final_norm(hidden)


class PreNormEncoderForSequenceClassification(PreNormEncoderModel):
    """An encoder whose pooled states are classified, such as a cross-encoder."""

    unused = re.compile(r"decoder\..*")

    def _make_head(self, config: ModelConfig, placement: Placement) -> TransformedHead:
        labels = {"classifier": config.num_labels}
        classifier = Linear(config.hidden_size, labels, placement, bias=True)
        return _head(config, placement, classifier)


class PreNormEncoderForMaskedLM(PreNormEncoderModel):
    """An encoder that predicts the token at each position; SPLADE pools its logits."""

    unused = re.compile(r"classifier\..*")
    lm_head_name = "decoder"

    def _make_head(self, config: ModelConfig, placement: Placement) -> TransformedHead:
        words = None if self._embeddings is None else self._embeddings.words
        bias = family_config(config, PreNormEncoderConfig).decoder_bias
        return _head(config, placement, self._make_lm_head(config, placement, words, bias=bias))


def _head(config: ModelConfig, placement: Placement, output: Linear) -> TransformedHead:
    """A classifier or the decoder of a masked language model, and what comes before it."""
    family, size = family_config(config, PreNormEncoderConfig), config.hidden_size
    dense = Linear(size, {"head.dense": size}, placement, bias=family.head_bias)
    norm = _norm("head.norm", config, placement)
    return TransformedHead(dense, activation(family.head_act), norm, output)


def _norm(name: str, config: ModelConfig, placement: Placement) -> LayerNorm:
    family = family_config(config, PreNormEncoderConfig)
    return LayerNorm(name, config.hidden_size, family.norm_eps, placement, bias=family.norm_bias)
