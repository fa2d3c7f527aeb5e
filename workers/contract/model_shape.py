"""The shape of a model: what a family reads of a checkpoint's `config.json` (no torch)."""

from typing import Literal

import msgspec

from workers.contract.attention_kind import AttentionKind
from workers.contract.embedding_modules import PoolingMode

ActivationName = Literal["silu", "relu", "tanh", "gelu", "gelu_new", "gelu_pytorch_tanh"]
"""As transformers calls an activation function."""


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True, tag="decoder"):
    """What differs between decoders that normalise each block's input and have a gated feed-forward
    network (`workers/models/decoder.py`).

    sandwich_norms     each block's output is normalised too, before it is added
    unit_offset_norms  checkpoints hold the norms' weights less 1
    embedding_scale    what embeddings are multiplied by, rounded to the model's dtype
    logit_softcap      a logit becomes logit_softcap * tanh(logit / logit_softcap)
    fused_projections  checkpoints have queries, keys and values in one tensor, and the gate and
                       what it multiplies in another
    """

    hidden_act: ActivationName
    norm_eps: float
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sandwich_norms: bool = False
    unit_offset_norms: bool = False
    embedding_scale: float = 1.0
    logit_softcap: float | None = None
    fused_projections: bool = False


class EncoderConfig(msgspec.Struct, frozen=True, kw_only=True, tag="encoder"):
    """What differs between encoders that normalise each block's sum (`workers/models/encoder.py`).

    A text's token i has row `first_position` + i of the table of positions. All tokens have segment
    0 if `type_vocab_size` is 1; there are no segments if it is 0. `head_act` and `pooler_act` are
    the activations of the heads: a masked language model's and a classifier's. The layers' products
    have no biases without `bias`. Checkpoints with `fused_qkv` have queries, keys and values in one
    tensor.
    """

    hidden_act: ActivationName
    head_act: ActivationName
    pooler_act: ActivationName = "tanh"
    norm_eps: float
    type_vocab_size: int
    first_position: int = 0
    gated: bool = False
    bias: bool = True
    fused_qkv: bool = False


class PreNormEncoderConfig(msgspec.Struct, frozen=True, kw_only=True, tag="pre_norm_encoder"):
    """What differs between encoders that normalise each block's input
    (`workers/models/encoder.py`). Those called `head` are of what comes before a
    classifier, or before the decoder of a masked language model."""

    hidden_act: ActivationName
    head_act: ActivationName
    norm_eps: float
    norm_bias: bool
    attention_bias: bool
    mlp_bias: bool
    head_bias: bool
    decoder_bias: bool


FamilyConfig = DecoderConfig | EncoderConfig | PreNormEncoderConfig


class WrapperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint names the tensors of the language model that it wraps.

    Such names have the part `inner`; where it is, it has no meaning ("language_model.model.norm",
    "model.language_model.norm" and "model.norm" are the same). Tensors of the other models, such as
    a vision tower, have one of the parts `skipped`.
    """

    inner: str = "language_model"
    skipped: tuple[str, ...] = ("vision_tower", "vision_model", "visual", "multi_modal_projector")

    def inner_name(self, name: str) -> str | None:
        """A tensor's name within the language model; None if it is not of that."""
        parts = name.split(".")
        if any(part in self.skipped for part in parts):
            return None
        return ".".join(part for part in parts if part != self.inner)


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in elements; `max_position` is the most tokens that the model can tell apart."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int


class ModelShape(Sizes, frozen=True, kw_only=True):
    """Layer i has the kind of attention `attention[layer_kinds[i]]`; all kinds are causal, or none
    is. With `tie_word_embeddings` the LM head is the embedding. `classifier_pooling` says which
    states a classifier gets. Only the model's own class reads `family`. `wrapper` is set for the
    language model of a larger one.
    """

    tie_word_embeddings: bool
    attention: tuple[AttentionKind, ...]
    layer_kinds: tuple[int, ...]
    classifier_pooling: PoolingMode = "cls"
    family: FamilyConfig
    wrapper: WrapperConfig | None = None

    @property
    def has_kv_cache(self) -> bool:
        """Whether tokens see only those before them, so that keys and values can be kept."""
        return self.attention[0].causal

    @property
    def gated(self) -> bool:
        """Whether two products go into the feed-forward network, one of them a gate."""
        return not isinstance(self.family, EncoderConfig) or self.family.gated
