"""ModernBERT (Warner et al. 2024, arXiv:2412.13663)."""

import msgspec

from workers.contract.attention_kind import AttentionKind
from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.config_keys.rope import rope_of
from workers.contract.config_keys.sizes import read_activation, read_sizes
from workers.contract.config_keys.windows import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    narrowed,
    read_layers,
)
from workers.contract.embedding_modules import PoolingMode
from workers.contract.families.base import encoder, shape_of
from workers.contract.model_shape import ModelShape, PreNormEncoderConfig
from workers.contract.rope_config import RopeConfig

_LAYER_TYPES = (FULL_ATTENTION, SLIDING_ATTENTION)
_CLASSIFIER_POOLING: dict[str, PoolingMode] = {"cls": "cls", "mean": "mean"}
_NOT_READ = (
    "layer_norm_eps",
    "position_embedding_type",
    "reference_compile",
    "repad_logits_with_grad",
    "sparse_pred_ignore_index",
    "sparse_prediction",
)
"""Of training, or of code that was there before transformers had the model."""


def read_modernbert(keys: ConfigKeys) -> ModelShape:
    """As `ModernBertConfig` of transformers. Raises ModelConfigError."""
    keys.ignore(*_NOT_READ)
    sizes = read_sizes(keys)
    scale = sizes.head_dim**-0.5
    everywhere, nearby = _read_ropes(keys, sizes.max_position)
    full = AttentionKind(causal=False, scale=scale, rope=everywhere)
    # Tokens up to half of `local_attention` away on either side are seen.
    window = (keys.optional_size("local_attention") or 128) // 2 + 1
    within = msgspec.structs.replace(full, rope=nearby)
    sliding = narrowed(within, window, sizes.max_position)
    every = keys.optional_size("global_attn_every_n_layers") or 3
    default = [sliding if layer % every else full for layer in range(sizes.num_layers)]
    layers = read_layers(keys, dict(zip(_LAYER_TYPES, (full, sliding), strict=True)), default)
    family = PreNormEncoderConfig(
        hidden_act=read_activation(keys, "hidden_activation", "gelu"),
        head_act=read_activation(keys, "classifier_activation", "gelu"),
        norm_eps=keys.read("norm_eps", float, 1e-5),
        norm_bias=keys.read("norm_bias", bool, False),
        attention_bias=keys.read("attention_bias", bool, False),
        mlp_bias=keys.read("mlp_bias", bool, False),
        head_bias=keys.read("classifier_bias", bool, False),
        decoder_bias=keys.read("decoder_bias", bool, True),
    )
    pooling = keys.choice("classifier_pooling", _CLASSIFIER_POOLING, "cls")
    shape = shape_of(keys, sizes, layers, family, tied=True)
    return msgspec.structs.replace(shape, classifier_pooling=pooling)


def _read_ropes(keys: ConfigKeys, max_position: int) -> tuple[RopeConfig, RopeConfig]:
    """Of layers that attend to everything, and of those with a window."""
    by_type = keys.nested("rope_parameters")
    everywhere, nearby = (by_type.nested(name) for name in _LAYER_TYPES)
    wide = keys.read("global_rope_theta", float, 160_000.0)
    narrow = keys.read("local_rope_theta", float, 10_000.0)
    return (
        rope_of(everywhere, wide, None, max_position),
        rope_of(nearby, narrow, None, max_position),
    )


MODERNBERT = encoder(
    "ModernBert",
    read_modernbert,
    ((r"^model\.", ""),),
    module="workers.models.encoder:PreNormEncoder",
)
