"""Encoders, alone, with a classifier, or with the LM head of a masked language model.

Blocks of `Encoder…` normalise the sum of their input and output, as in BERT, those of
`PreNormEncoder…` their input, as in ModernBERT. Weights are called as in these two's checkpoints,
ModernBERT's without the prefix "model.".
"""

import math
import re

import torch

from workers.contract.model_config import (
    EncoderConfig,
    LinearBias,
    ModelConfig,
    PositionBias,
    PreNormEncoderConfig,
    TokenOutput,
)
from workers.layers.activations import ACTIVATIONS, Activation
from workers.layers.layer import Chain, Layer, Placement
from workers.layers.linear import Embedding, Linear
from workers.layers.norm import LayerNorm
from workers.models.base import (
    StageLayer,
    StageModel,
    family_config,
    on_this_stage,
)
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

_POSITIONS = "embeddings.position_embeddings"
_TYPES = "embeddings.token_type_embeddings"
_PROJECTION = "embeddings_project"
_BIAS = "encoder.relative_attention_bias"
_TRANSFORM = "cls.predictions.transform"
_DECODER = "cls.predictions.decoder"


class EncoderEmbeddings(Layer):
    """The normalised sum of the embeddings of tokens, and of positions and segments, if any. It may
    be projected to another width."""

    def __init__(
        self,
        words: Embedding,
        norm: LayerNorm,
        positions: Embedding | None = None,
        types: Embedding | None = None,
        projection: Linear | None = None,
    ) -> None:
        self.words, self._norm, self._positions, self._types = words, norm, positions, types
        self._projection = projection

    def __call__(self, step: PagedStep | PackedStep) -> torch.Tensor:
        summed = self.words(step.tokens)
        if self._types is not None:
            ids = step.token_types if isinstance(step, PackedStep) else None
            ids = None if len(self._types.weight) == 1 else ids
            summed = summed + (self._types.weight[0] if ids is None else self._types(ids))
        if self._positions is not None:
            summed = summed + self._positions(step.positions)
        normed = self._norm(summed)
        return normed if self._projection is None else self._projection(normed)


class RelativePositionBias(Layer):
    """A learned bias of attention's scores by distance (Raffel et al. 2019, arXiv:1910.10683, 2.1).

    `table` [num_heads, 2 * length - 1] has the bias of query q and key k at length - 1 + k - q. It
    is valid once the weight [num_buckets, num_heads] is packed.
    """

    def __init__(
        self, name: str, bias: PositionBias, num_heads: int, length: int, placement: Placement
    ) -> None:
        self._name = name
        self._weight = placement.empty(bias.num_buckets, num_heads)
        self._buckets = buckets_by_distance(bias, length).to(placement.device)
        self.table = placement.empty(num_heads, len(self._buckets))

    def weights(self) -> dict[str, torch.Tensor]:
        return {f"{self._name}.weight": self._weight}

    def pack(self) -> None:
        self.table.copy_(self._weight.index_select(0, self._buckets).t())


def buckets_by_distance(bias: PositionBias, length: int) -> torch.Tensor:
    """Buckets of the distances k - q from 1 - length to length - 1, int64[2 * length - 1].

    The first half is for keys behind the query, the second for those ahead. Half of each is for
    single distances, the rest for ranges that grow with the distance's logarithm, which is rounded
    in float32 as in transformers.
    """
    half = bias.num_buckets // 2
    single = half // 2
    distances = torch.arange(1 - length, length)
    away = distances.abs()
    growth = torch.log(away.clamp(min=single).float() / single)
    wide = single + (growth / math.log(bias.max_distance / single) * (half - single)).long()
    buckets = torch.where(away < single, away, wide.clamp(max=half - 1))
    return buckets + half * (distances > 0)


def linear_bias(num_heads: int, length: int) -> torch.Tensor:
    """ALiBi of distances k - q from 1 - length to length - 1, float32[num_heads, 2 * length - 1].

    Slopes are 2^(-8 i / n) for the n heads i. If n is no power of two, those of the power below it
    are followed by every other one of the power above it.
    """
    below = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
    slopes += [2.0 ** (-4 * i / below) for i in range(1, 2 * (num_heads - below), 2)]
    return -torch.tensor(slopes)[:, None] * torch.arange(1 - length, length).abs()


class EncoderLayer(StageLayer):
    """Attention and a feed-forward network. Each normalises the sum of its input and output."""

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
        function, up = ACTIVATIONS[family.hidden_act], f"{name}.intermediate"
        self._gate_last = family.fused_gate == "last"
        if family.gated:
            parts = ("gate", "dense") if family.fused_gate is None else ("dense",)
            gate_up = {f"{up}.{part}": 2 * inner // len(parts) for part in parts}
            self._up = Linear(size, gate_up, placement, bias=False, gate=function)
        else:
            members = {f"{up}.dense": inner}
            self._up = Linear(size, members, placement, bias=True, function=function)
        self._down = Linear(inner, {f"{name}.output.dense": size}, placement, bias=bias)
        self._mlp_norm = LayerNorm(f"{name}.output.LayerNorm", size, eps, placement)

    def adjust(self) -> None:
        if self._gate_last:
            for halves in filter(torch.Tensor.dim, self._up.weights().values()):
                halves.copy_(halves.roll(len(halves) // 2, 0))
        super().adjust()

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._qkv(hidden).view(len(hidden), -1, self._head_dim)

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = self._attention_norm(self._output(attended.flatten(1)), hidden)
        return self._mlp_norm(self._down(self._up(hidden)), hidden)


class EncoderModel(StageModel):
    """One stage of an encoder (see `StageModel`), whose states are pooled."""

    unused = re.compile(
        r"embeddings\.position_ids|((unused_)?pooler|cls|classifier|qa_outputs)\..*"
    )
    embedding_name = "embeddings.word_embeddings"

    def _build(self, config: ModelConfig, placement: Placement) -> None:
        share, bias = self.share, config.attention[0].position_bias
        self._embeddings = self._make_embeddings(config, placement) if share.first else None
        heads, length = config.num_heads, config.max_position
        if isinstance(bias, PositionBias):
            self._bias = RelativePositionBias(_BIAS, bias, heads, length, placement)
            self.position_bias = self._bias.table
        elif isinstance(bias, LinearBias):
            table = linear_bias(heads, length)
            self.position_bias = table.to(placement.device, placement.dtype)
        if config.shared_layers:
            self.layers = [EncoderLayer(config, "encoder.layer.0", placement)] * len(share.layers)
        else:
            names = [f"encoder.layer.{i}" for i in share.layers]
            self.layers = [EncoderLayer(config, name, placement) for name in names]

    def _make_embeddings(self, config: ModelConfig, placement: Placement) -> EncoderEmbeddings:
        family = family_config(config, EncoderConfig)
        size, wide = config.embedding_size, {_PROJECTION: config.hidden_size}
        first, types = family.first_position, family.type_vocab_size
        positions = first + config.max_position if family.positions else 0
        return EncoderEmbeddings(
            Embedding(self.embedding_name, config.vocab_size, size, placement),
            LayerNorm("embeddings.LayerNorm", size, family.norm_eps, placement),
            Embedding(_POSITIONS, positions, size, placement, first) if positions else None,
            Embedding(_TYPES, types, size, placement) if types else None,
            Linear(size, wide, placement, bias=True) if family.embedding_size else None,
        )

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        return on_this_stage(self._embeddings)(step)

    def _make_decoder(self, config: ModelConfig, placement: Placement, *, bias: bool) -> Linear:
        words = None if self._embeddings is None else self._embeddings.words
        return self._make_lm_head(config, placement, words, bias=bias)


class EncoderForSequenceClassification(EncoderModel):
    """An encoder whose first token is classified, such as a cross-encoder."""

    unused = re.compile(r"embeddings\.position_ids|(unused_pooler|cls|qa_outputs)\..*")

    def _make_head(self, config: ModelConfig, placement: Placement) -> Chain:
        size = config.hidden_size
        function = ACTIVATIONS[family_config(config, EncoderConfig).pooler_act]
        pooler = Linear(size, {"pooler.dense": size}, placement, bias=True, function=function)
        return Chain(pooler, _classifier(config, placement))


class EncoderForTokenClassification(EncoderModel):
    """An encoder whose every token is classified."""

    unused = re.compile(r"embeddings\.position_ids|((unused_)?pooler|cls|qa_outputs)\..*")

    def _make_token_heads(
        self, config: ModelConfig, placement: Placement
    ) -> dict[TokenOutput, Activation]:
        return {"token_vectors": _classifier(config, placement)}


class EncoderForMaskedLM(EncoderModel):
    """A masked language model, whose logits SPLADE pools."""

    unused = re.compile(
        r"embeddings\.position_ids|((unused_)?pooler|cls\.seq_relationship|classifier|qa_outputs)\..*"
        rf"|{re.escape(_DECODER)}\.bias"  # if a checkpoint has both names, one is unread
    )
    lm_head_name = _DECODER

    def _make_head(self, config: ModelConfig, placement: Placement) -> Chain:
        family, size = family_config(config, EncoderConfig), config.embedding_size
        members, function = {f"{_TRANSFORM}.dense": size}, ACTIVATIONS[family.head_act]
        dense = Linear(config.hidden_size, members, placement, bias=True, function=function)
        norm = LayerNorm(f"{_TRANSFORM}.LayerNorm", size, family.norm_eps, placement)
        decoder = self._make_decoder(config, placement, bias=True)
        return Chain(dense, norm, decoder)


class PreNormEncoderLayer(StageLayer):
    """Attention and a gated feed-forward network. Each normalises its input and adds its output to
    it. The first layer's attention has no norm: its input is normalised."""

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
        self._gate_up = Linear(
            size, members, placement, bias=bias, gate=ACTIVATIONS[family.hidden_act]
        )
        self._down = Linear(inner, {down: size}, placement, bias=bias)

    def qkv(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = hidden if self._attention_norm is None else self._attention_norm(hidden)
        return self._qkv(normed).view(len(hidden), -1, self._head_dim)

    def after_attention(self, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        hidden = self._output.add_to(hidden, attended.flatten(1))
        return self._down.add_to(hidden, self._gate_up(self._mlp_norm(hidden)))


class PreNormEncoderModel(EncoderModel):
    """One stage of an encoder (see `StageModel`), whose states are pooled."""

    unused = re.compile(r"(head|decoder|classifier)\..*")
    embedding_name = "embeddings.tok_embeddings"

    def _build(self, config: ModelConfig, placement: Placement) -> None:
        share = self.share
        self._embeddings = self._make_embeddings(config, placement) if share.first else None
        self.layers = [PreNormEncoderLayer(config, i, placement) for i in share.layers]
        self._final_norm = _norm("final_norm", config, placement) if share.last else None

    def _make_embeddings(self, config: ModelConfig, placement: Placement) -> EncoderEmbeddings:
        words = Embedding(self.embedding_name, config.vocab_size, config.hidden_size, placement)
        return EncoderEmbeddings(words, _norm("embeddings.norm", config, placement))


class PreNormEncoderForSequenceClassification(PreNormEncoderModel):
    """An encoder whose pooled states are classified, such as a cross-encoder."""

    unused = re.compile(r"decoder\..*")

    def _make_head(self, config: ModelConfig, placement: Placement) -> Chain:
        return _head(config, placement, _classifier(config, placement))


class PreNormEncoderForTokenClassification(PreNormEncoderModel):
    """An encoder whose every token is classified."""

    unused = re.compile(r"decoder\..*")

    def _make_token_heads(
        self, config: ModelConfig, placement: Placement
    ) -> dict[TokenOutput, Activation]:
        return {"token_vectors": _head(config, placement, _classifier(config, placement))}


class PreNormEncoderForMaskedLM(PreNormEncoderModel):
    """A masked language model, whose logits SPLADE pools."""

    unused = re.compile(r"classifier\..*")
    lm_head_name = "decoder"

    def _make_head(self, config: ModelConfig, placement: Placement) -> Chain:
        bias = family_config(config, PreNormEncoderConfig).decoder_bias
        return _head(config, placement, self._make_decoder(config, placement, bias=bias))


def _classifier(config: ModelConfig, placement: Placement) -> Linear:
    return Linear(config.hidden_size, {"classifier": config.num_labels}, placement, bias=True)


def _head(config: ModelConfig, placement: Placement, output: Linear) -> Chain:
    """`output`, a classifier or decoder, behind what comes before it."""
    family, size = family_config(config, PreNormEncoderConfig), config.hidden_size
    members, function = {"head.dense": size}, ACTIVATIONS[family.head_act]
    dense = Linear(size, members, placement, bias=family.head_bias, function=function)
    norm = _norm("head.norm", config, placement)
    return Chain(dense, norm, output)


def _norm(name: str, config: ModelConfig, placement: Placement) -> LayerNorm:
    family = family_config(config, PreNormEncoderConfig)
    return LayerNorm(name, config.hidden_size, family.norm_eps, placement, bias=family.norm_bias)
