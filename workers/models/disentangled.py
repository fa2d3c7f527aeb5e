"""Encoders as BERT, with disentangled attention: what two tokens are meets their distance."""

import torch

from workers.attention.distance_vectors import DistanceVectors
from workers.contract.model_config import DisentangledBias, EncoderConfig, ModelConfig
from workers.layers.layer import Placement
from workers.layers.linear import Embedding
from workers.layers.norm import LayerNorm
from workers.models.base import family_config
from workers.models.encoder import (
    EncoderForMaskedLM,
    EncoderForSequenceClassification,
    EncoderForTokenClassification,
    EncoderModel,
)


def buckets_of(bias: DisentangledBias, length: int) -> torch.Tensor:
    """Buckets of the distances q - k from 1 - length to length - 1, int64[2 * length - 1].

    Beyond span / 2 they grow with the distance's logarithm, which is rounded in float32 and then up
    as in transformers.
    """
    distances = torch.arange(1 - length, length)
    away, half = distances.abs(), bias.span // 2
    if bias.max_distance is not None:
        most = torch.tensor((bias.max_distance - 1) / half)
        growth = torch.log(away.clamp(min=half) / half) / torch.log(most)
        wide = torch.ceil(growth * (half - 1)).long() + half
        away = torch.where(away <= half, away, wide)
    return (distances.sign() * away + bias.span).clamp(0, 2 * bias.span - 1)


class DisentangledModel(EncoderModel):
    """One stage of an encoder (see `StageModel`). All layers share a table of distances, of which
    each makes vectors as it makes queries and keys of tokens."""

    def _build(self, config: ModelConfig, placement: Placement) -> None:
        super()._build(config, placement)
        size, eps = config.hidden_size, family_config(config, EncoderConfig).norm_eps
        bias = config.attention[0].position_bias
        assert isinstance(bias, DisentangledBias), "as the family's reader says"
        self._heads, self._buckets = config.num_heads, buckets_of(bias, config.max_position)
        self._table = Embedding("encoder.rel_embeddings", 2 * bias.span, size, placement)
        self._table_norm = LayerNorm("encoder.LayerNorm", size, eps, placement)

    def pack(self) -> None:
        super().pack()
        rows, heads = self._table_norm(self._table.weight), self._heads
        buckets = self._buckets.to(rows.device)
        for layer in self.layers:
            made = layer.qkv(rows).transpose(0, 1).contiguous()
            layer.vectors = DistanceVectors(made[heads : 2 * heads], made[:heads], buckets)


class DisentangledForSequenceClassification(DisentangledModel, EncoderForSequenceClassification):
    """An encoder whose first token is classified, such as a cross-encoder."""


class DisentangledForMaskedLM(DisentangledModel, EncoderForMaskedLM):
    """A masked language model, whose logits SPLADE pools."""


class DisentangledForTokenClassification(DisentangledModel, EncoderForTokenClassification):
    """An encoder whose every token is classified."""
