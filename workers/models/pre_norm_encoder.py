"""Encoders whose blocks normalise their input, with a gated feed-forward network and rotary
positions, such as ModernBERT: alone, with a classifier, or with the LM head of a masked language
model. Weights are called as in ModernBERT's checkpoints, without the prefix "model."."""

import re
from collections.abc import Mapping, Sequence

import torch

from workers.contract.families.table import family_of
from workers.contract.model_config import ModelConfig
from workers.contract.model_shape import PreNormEncoderConfig
from workers.contract.share import Share
from workers.layers.activation import activation
from workers.layers.embedding import Embedding
from workers.layers.gated_linear import GatedLinear
from workers.layers.layer import Layer
from workers.layers.linear import Linear, pad_rows
from workers.layers.norm import LayerNorm, QKNorm
from workers.layers.placement import Placement
from workers.models.base import family_config, on_this_stage
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

_WORDS = "embeddings.tok_embeddings"
_DECODER = "decoder"


class PreNormEncoderEmbeddings(Layer):
    """Token embeddings, normalised."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        self.words = Embedding(_WORDS, config.vocab_size, config.hidden_size, placement)
        self._norm = _norm("embeddings.norm", config, placement)

    def __call__(self, step: PagedStep | PackedStep) -> torch.Tensor:
        """[T', hidden_size]"""
        return self._norm(self.words(step.tokens))

    def parts(self) -> Sequence[Layer]:
        return self.words, self._norm


class PreNormEncoderLayer(Layer):
    """Attention and a gated feed-forward network. Each normalises its input and adds its output to
    it (see `StageLayer`). The first layer's attention has no norm: its input is normalised."""

    qk_norm: QKNorm | None = None

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

    def parts(self) -> Sequence[Layer]:
        parts = (self._attention_norm, self._qkv, self._output, self._mlp_norm)
        return [*(part for part in parts if part is not None), self._gate_up, self._down]


class PreNormEncoderModel(Layer):
    """One stage of an encoder (see `StageModel`), whose states are pooled."""

    unused = re.compile(r"(head|decoder|classifier)\..*")
    position_bias: torch.Tensor | None = None

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None:
        self.share = share
        self.canonical_name = family_of(config.architecture).canonical_name
        self._embeddings = PreNormEncoderEmbeddings(config, placement) if share.first else None
        self.layers = [PreNormEncoderLayer(config, i, placement) for i in share.layers]
        self._final_norm = _norm("final_norm", config, placement) if share.last else None

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        return on_this_stage(self._embeddings)(step)

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self._final_norm is None else self._final_norm(hidden)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def parts(self) -> Sequence[Layer]:
        parts = (self._embeddings, *self.layers, self._final_norm)
        return [part for part in parts if part is not None]

    def copies(self) -> Mapping[str, str]:
        return {}


class PredictionHead(Layer):
    """What comes before the classifier, or before the decoder of a masked language model."""

    def __init__(self, config: ModelConfig, placement: Placement) -> None:
        family, size = family_config(config, PreNormEncoderConfig), config.hidden_size
        self._dense = Linear(size, {"head.dense": size}, placement, bias=family.head_bias)
        self._activation = activation(family.head_act)
        self._norm = _norm("head.norm", config, placement)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] -> the same shape"""
        return self._norm(self._activation(self._dense(hidden)))

    def parts(self) -> Sequence[Layer]:
        return self._dense, self._norm


class PreNormEncoderForSequenceClassification(PreNormEncoderModel):
    """An encoder whose pooled states are classified, such as a cross-encoder."""

    unused = re.compile(r"decoder\..*")

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None:
        super().__init__(config, share, placement)
        labels = {"classifier": config.num_labels}
        last, size = share.last, config.hidden_size
        self._head = PredictionHead(config, placement) if last else None
        self._classifier = Linear(size, labels, placement, bias=True) if last else None

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        pooled = on_this_stage(self._head)(pad_rows(hidden))
        return on_this_stage(self._classifier)(pooled)[: hidden.shape[0]]

    def parts(self) -> Sequence[Layer]:
        head = (self._head, self._classifier)
        return [*super().parts(), *(part for part in head if part is not None)]


class PreNormEncoderForMaskedLM(PreNormEncoderModel):
    """An encoder that predicts the token at each position; SPLADE pools its logits.

    If the two are tied, the decoder shares the weight of the token embedding.
    """

    unused = re.compile(r"classifier\..*")

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None:
        super().__init__(config, share, placement)
        self._tied = config.tie_word_embeddings
        self._head = PredictionHead(config, placement) if share.last else None
        self._decoder = self._make_decoder(config, placement) if share.last else None

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        states = on_this_stage(self._head)(pad_rows(hidden))
        return on_this_stage(self._decoder)(states)[: hidden.shape[0]]

    def parts(self) -> Sequence[Layer]:
        head = (self._head, self._decoder)
        return [*super().parts(), *(part for part in head if part is not None)]

    def weights(self) -> dict[str, torch.Tensor]:
        weights = super().weights()
        if (bias := weights.pop(f"{_WORDS}.bias", None)) is not None:
            weights[f"{_DECODER}.bias"] = bias
        return weights

    def copies(self) -> Mapping[str, str]:
        has_copy = self._tied and self._decoder is not None
        return {f"{_DECODER}.weight": f"{_WORDS}.weight"} if has_copy else {}

    def _make_decoder(self, config: ModelConfig, placement: Placement) -> Linear:
        words = None if self._embeddings is None else self._embeddings.words.weight
        tied, bias = self._tied, family_config(config, PreNormEncoderConfig).decoder_bias
        decoder = {_WORDS if tied else _DECODER: config.vocab_size}
        shared = words if tied else None
        return Linear(config.hidden_size, decoder, placement, bias=bias, tied=shared)


def _norm(name: str, config: ModelConfig, placement: Placement) -> LayerNorm:
    family = family_config(config, PreNormEncoderConfig)
    return LayerNorm(name, config.hidden_size, family.norm_eps, placement, bias=family.norm_bias)
