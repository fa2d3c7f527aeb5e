"""Encoders whose blocks normalise the sum of their input and output, such as BERT: alone, with a
classifier, or with the LM head of a masked language model. `EncoderConfig` says what differs
between them; weights are called as in BERT's checkpoints."""

import re

import torch

from workers.contract.model_config import EncoderConfig, ModelConfig
from workers.layers.activated_linear import ActivatedLinear
from workers.layers.activation import activation
from workers.layers.embedding import Embedding
from workers.layers.gated_linear import GatedLinear
from workers.layers.layer import Layer
from workers.layers.linear import Linear
from workers.layers.norm import LayerNorm
from workers.layers.placement import Placement
from workers.layers.position_bias import RelativePositionBias
from workers.models.base import (
    StageLayer,
    StageModel,
    TransformedHead,
    family_config,
    on_this_stage,
)
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

_WORDS = "embeddings.word_embeddings"
_POSITIONS = "embeddings.position_embeddings"
_TYPES = "embeddings.token_type_embeddings"
_BIAS = "encoder.relative_attention_bias"
_TRANSFORM = "cls.predictions.transform"
_DECODER = "cls.predictions.decoder"


class EncoderEmbeddings(Layer):
    """Token embeddings, positions unless attention rotates by them, segments where the model knows
    them; the sum normalised."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        size, family = config.hidden_size, family_config(config, EncoderConfig)
        first, positions = family.first_position, family.first_position + config.max_position
        self.words = Embedding(_WORDS, config.vocab_size, size, placement)
        types, rotates = family.type_vocab_size, config.attention[0].rope is not None
        table = None if rotates else Embedding(_POSITIONS, positions, size, placement, first)
        self._positions = table
        self._types = Embedding(_TYPES, types, size, placement) if types else None
        self._norm = LayerNorm("embeddings.LayerNorm", size, family.norm_eps, placement)

    def __call__(self, step: PagedStep | PackedStep) -> torch.Tensor:
        """[T', hidden_size]"""
        summed = self.words(step.tokens)
        if self._types is not None:
            summed = summed + _segments(self._types, step)
        if self._positions is not None:
            summed = summed + self._positions(step.positions)
        return self._norm(summed)


def _segments(types: Embedding, step: PagedStep | PackedStep) -> torch.Tensor:
    """[T', hidden_size], or [hidden_size] if all tokens are of one segment."""
    ids = step.token_types if isinstance(step, PackedStep) else None
    return types.weight[0] if ids is None or len(types.weight) == 1 else types(ids)


class EncoderLayer(StageLayer):
    """Attention and a feed-forward network. Each adds its output to its input and normalises the
    sum (see `StageLayer`)."""

    def __init__(self, config: ModelConfig, name: str, placement: Placement) -> None:
        family = family_config(config, EncoderConfig)
        size, inner, eps = config.hidden_size, config.intermediate_size, family.norm_eps
        self._head_dim = config.head_dim
        parts = ("qkv",) if family.fused_qkv else ("query", "key", "value")
        qkv = {f"{name}.attention.self.{part}": 3 * size // len(parts) for part in parts}
        output, bias = {f"{name}.attention.output.dense": size}, family.bias
        self._qkv = Linear(size, qkv, placement, bias=bias)
        self._output = Linear(size, output, placement, bias=bias)
        self._attention_norm = LayerNorm(f"{name}.attention.output.LayerNorm", size, eps, placement)
        self._up = _up(config, f"{name}.intermediate", placement)
        self._down = Linear(inner, {f"{name}.output.dense": size}, placement, bias=bias)
        self._mlp_norm = LayerNorm(f"{name}.output.LayerNorm", size, eps, placement)

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._qkv(hidden).view(len(hidden), -1, self._head_dim)

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = self._attention_norm.of_sum(hidden, self._output(attended.flatten(1)))
        return self._mlp_norm.of_sum(hidden, self._down(self._up.activated(hidden)))


def _up(config: ModelConfig, name: str, placement: Placement) -> ActivatedLinear | GatedLinear:
    """What goes into a layer's feed-forward network."""
    family, size = family_config(config, EncoderConfig), config.hidden_size
    function, inner = activation(family.hidden_act), config.intermediate_size
    if family.gated:
        gate_up = {f"{name}.{part}": inner for part in ("gate", "dense")}
        return GatedLinear(size, gate_up, function, placement, bias=family.bias)
    return ActivatedLinear(size, f"{name}.dense", inner, function, placement)


class EncoderModel(StageModel):
    """One stage of an encoder (see `StageModel`), whose states are pooled."""

    unused = re.compile(
        r"embeddings\.position_ids|((unused_)?pooler|cls|classifier|qa_outputs)\..*"
    )
    embedding_name = _WORDS

    def _build(self, config: ModelConfig, placement: Placement) -> None:
        share, bias = self.share, config.attention[0].position_bias
        self._embeddings = EncoderEmbeddings(config, placement) if share.first else None
        heads, length = config.num_heads, config.max_position
        self._bias = bias and RelativePositionBias(_BIAS, bias, heads, length, placement)
        self.layers = [EncoderLayer(config, f"encoder.layer.{i}", placement) for i in share.layers]

    @property
    def position_bias(self) -> torch.Tensor | None:
        return None if self._bias is None else self._bias.table

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        return on_this_stage(self._embeddings)(step)


class EncoderForSequenceClassification(EncoderModel):
    """An encoder whose first token is classified, such as a cross-encoder."""

    unused = re.compile(r"embeddings\.position_ids|(unused_pooler|cls|qa_outputs)\..*")

    def _make_head(self, config: ModelConfig, placement: Placement) -> TransformedHead:
        size, labels = config.hidden_size, {"classifier": config.num_labels}
        function = activation(family_config(config, EncoderConfig).pooler_act)
        pooler = Linear(size, {"pooler.dense": size}, placement, bias=True)
        classifier = Linear(size, labels, placement, bias=True)
        return TransformedHead(pooler, function, None, classifier)


class EncoderForMaskedLM(EncoderModel):
    """An encoder that predicts the token at each position; SPLADE pools its logits."""

    unused = re.compile(
        r"embeddings\.position_ids|((unused_)?pooler|cls\.seq_relationship|classifier|qa_outputs)\..*"
        rf"|{re.escape(_DECODER)}\.bias"  # if a checkpoint has both names, one is unread
    )
    lm_head_name = _DECODER

    def _make_head(self, config: ModelConfig, placement: Placement) -> TransformedHead:
        family, size = family_config(config, EncoderConfig), config.hidden_size
        dense = Linear(size, {f"{_TRANSFORM}.dense": size}, placement, bias=True)
        norm = LayerNorm(f"{_TRANSFORM}.LayerNorm", size, family.norm_eps, placement)
        words = None if self._embeddings is None else self._embeddings.words
        decoder = self._make_lm_head(config, placement, words, bias=True)
        return TransformedHead(dense, activation(family.head_act), norm, decoder)
