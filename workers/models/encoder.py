"""Encoders whose blocks normalise the sum of their input and output, such as BERT: alone, with a
classifier, or with the LM head of a masked language model. `EncoderConfig` says what differs
between them; weights are called as in BERT's checkpoints."""

import re
from collections.abc import Mapping, Sequence

import torch

from workers.contract.families.table import family_of
from workers.contract.model_config import ModelConfig
from workers.contract.model_shape import EncoderConfig
from workers.contract.share import Share
from workers.layers.activated_linear import ActivatedLinear
from workers.layers.activation import activation
from workers.layers.embedding import Embedding
from workers.layers.gated_linear import GatedLinear
from workers.layers.layer import Layer
from workers.layers.linear import Linear, pad_rows
from workers.layers.norm import LayerNorm, QKNorm
from workers.layers.placement import Placement
from workers.layers.position_bias import RelativePositionBias
from workers.models.base import family_config, on_this_stage
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

_WORDS = "embeddings.word_embeddings"
_POSITIONS = "embeddings.position_embeddings"
_TYPES = "embeddings.token_type_embeddings"
_BIAS = "encoder.relative_attention_bias"
_HEAD = "cls.predictions"
_DECODER = f"{_HEAD}.decoder"


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

    def parts(self) -> Sequence[Layer]:
        tables = (self.words, self._positions, self._types)
        return [*(table for table in tables if table is not None), self._norm]


def _segments(types: Embedding, step: PagedStep | PackedStep) -> torch.Tensor:
    """[T', hidden_size], or [hidden_size] if all tokens are of one segment."""
    ids = step.token_types if isinstance(step, PackedStep) else None
    return types.weight[0] if ids is None or len(types.weight) == 1 else types(ids)


class EncoderLayer(Layer):
    """Attention and a feed-forward network. Each adds its output to its input and normalises the
    sum (see `StageLayer`)."""

    qk_norm: QKNorm | None = None

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

    def parts(self) -> Sequence[Layer]:
        attention = (self._qkv, self._output, self._attention_norm)
        return *attention, self._up, self._down, self._mlp_norm


def _up(config: ModelConfig, name: str, placement: Placement) -> ActivatedLinear | GatedLinear:
    """What goes into a layer's feed-forward network."""
    family, size = family_config(config, EncoderConfig), config.hidden_size
    function, inner = activation(family.hidden_act), config.intermediate_size
    if family.gated:
        gate_up = {f"{name}.{part}": inner for part in ("gate", "dense")}
        return GatedLinear(size, gate_up, function, placement, bias=family.bias)
    return ActivatedLinear(size, f"{name}.dense", inner, function, placement)


class EncoderModel(Layer):
    """One stage of an encoder (see `StageModel`), whose states are pooled."""

    unused = re.compile(
        r"embeddings\.position_ids|((unused_)?pooler|cls|classifier|qa_outputs)\..*"
    )

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None:
        self.share = share
        self.canonical_name = family_of(config.architecture).canonical_name
        self._embeddings = EncoderEmbeddings(config, placement) if share.first else None
        self.layers = [EncoderLayer(config, f"encoder.layer.{i}", placement) for i in share.layers]
        bias, length = config.attention[0].position_bias, config.max_position
        self._bias = bias and RelativePositionBias(_BIAS, bias, config.num_heads, length, placement)

    @property
    def position_bias(self) -> torch.Tensor | None:
        return None if self._bias is None else self._bias.table

    def embed(self, step: PagedStep | PackedStep) -> torch.Tensor:
        return on_this_stage(self._embeddings)(step)

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def parts(self) -> Sequence[Layer]:
        others = (self._embeddings, self._bias)
        return [*(part for part in others if part is not None), *self.layers]

    def copies(self) -> Mapping[str, str]:
        return {}


class EncoderForSequenceClassification(EncoderModel):
    """An encoder whose first token is classified, such as a cross-encoder."""

    unused = re.compile(r"embeddings\.position_ids|(unused_pooler|cls|qa_outputs)\..*")

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None:
        super().__init__(config, share, placement)
        size, last = config.hidden_size, share.last
        pooler, classifier = {"pooler.dense": size}, {"classifier": config.num_labels}
        self._pooler = Linear(size, pooler, placement, bias=True) if last else None
        self._activation = activation(family_config(config, EncoderConfig).pooler_act)
        self._classifier = Linear(size, classifier, placement, bias=True) if last else None

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        pooled = self._activation(on_this_stage(self._pooler)(pad_rows(hidden)))
        return on_this_stage(self._classifier)(pooled)[: hidden.shape[0]]

    def parts(self) -> Sequence[Layer]:
        head = (self._pooler, self._classifier)
        return [*super().parts(), *(part for part in head if part is not None)]


class MaskedLMHead(Layer):
    """Logits of the token at each position, from its final state.

    If the two are tied, the decoder shares the weight of the word embedding.
    """

    def __init__(
        self, config: ModelConfig, words: torch.Tensor | None, placement: Placement
    ) -> None:
        """`words` is the weight of the word embedding, None if that is on another stage."""
        size, tied = config.hidden_size, config.tie_word_embeddings
        family = family_config(config, EncoderConfig)
        self._dense = Linear(size, {f"{_HEAD}.transform.dense": size}, placement, bias=True)
        self._activation = activation(family.head_act)
        norm = f"{_HEAD}.transform.LayerNorm"
        self._norm = LayerNorm(norm, size, family.norm_eps, placement)
        self._decoder_name = _WORDS if tied else _DECODER
        decoder, shared = {self._decoder_name: config.vocab_size}, words if tied else None
        self._decoder = Linear(size, decoder, placement, bias=True, tied=shared)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] -> [N, vocab_size]"""
        return self._decoder(self._norm(self._activation(self._dense(hidden))))

    def parts(self) -> Sequence[Layer]:
        return self._dense, self._norm, self._decoder

    def weights(self) -> dict[str, torch.Tensor]:
        weights = super().weights()
        weights[f"{_DECODER}.bias"] = weights.pop(f"{self._decoder_name}.bias")
        return weights


class EncoderForMaskedLM(EncoderModel):
    """An encoder that predicts the token at each position; SPLADE pools its logits."""

    unused = re.compile(
        r"embeddings\.position_ids|((unused_)?pooler|cls\.seq_relationship|classifier|qa_outputs)\..*"
        rf"|{re.escape(_DECODER)}\.bias"  # if a checkpoint has both names, one is unread
    )

    def __init__(self, config: ModelConfig, share: Share, placement: Placement) -> None:
        super().__init__(config, share, placement)
        words = None if self._embeddings is None else self._embeddings.words.weight
        self._head = MaskedLMHead(config, words, placement) if share.last else None
        self._tied = config.tie_word_embeddings

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return on_this_stage(self._head)(pad_rows(hidden))[: hidden.shape[0]]

    def parts(self) -> Sequence[Layer]:
        return super().parts() if self._head is None else [*super().parts(), self._head]

    def copies(self) -> Mapping[str, str]:
        has_copy = self._tied and self._head is not None
        return {f"{_DECODER}.weight": f"{_WORDS}.weight"} if has_copy else {}
