"""ModernBERT (Warner et al. 2024, arXiv:2412.13663)."""

import msgspec

from workers.contract.attention_kind import AttentionKind
from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.config_keys.rope import rope_of
from workers.contract.config_keys.sizes import read_activation, read_layer_types, read_sizes
from workers.contract.config_keys.windows import FULL_ATTENTION, SLIDING_ATTENTION, narrowed
from workers.contract.embedding_modules import PoolingMode
from workers.contract.families.base import encoder
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
    within = AttentionKind(causal=False, scale=scale, rope=nearby)
    # Tokens up to half of `local_attention` away on either side are seen.
    window = (keys.optional_size("local_attention") or 128) // 2 + 1
    return ModelShape(
        **msgspec.structs.asdict(sizes),
        tie_word_embeddings=keys.read("tie_word_embeddings", bool, True),
        attention=(
            AttentionKind(causal=False, scale=scale, rope=everywhere),
            narrowed(within, window, sizes.max_position),
        ),
        layer_kinds=_read_layer_kinds(keys, sizes.num_layers),
        classifier_pooling=_read_classifier_pooling(keys),
        family=PreNormEncoderConfig(
            hidden_act=read_activation(keys, "hidden_activation", "gelu"),
            head_act=read_activation(keys, "classifier_activation", "gelu"),
            norm_eps=keys.read("norm_eps", float, 1e-5),
            norm_bias=keys.read("norm_bias", bool, False),
            attention_bias=keys.read("attention_bias", bool, False),
            mlp_bias=keys.read("mlp_bias", bool, False),
            head_bias=keys.read("classifier_bias", bool, False),
            decoder_bias=keys.read("decoder_bias", bool, True),
        ),
    )


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


def _read_layer_kinds(keys: ConfigKeys, num_layers: int) -> tuple[int, ...]:
    every = keys.optional_size("global_attn_every_n_layers") or 3
    default = tuple(int(layer % every > 0) for layer in range(num_layers))
    return read_layer_types(keys, num_layers, _LAYER_TYPES) or default


def _read_classifier_pooling(keys: ConfigKeys) -> PoolingMode:
    name = keys.read("classifier_pooling", str, "cls")
    if name not in _CLASSIFIER_POOLING:
        known = ", ".join(_CLASSIFIER_POOLING)
        raise keys.error(f"classifier_pooling {name!r} is not supported (one of {known})")
    return _CLASSIFIER_POOLING[name]


MODERNBERT = encoder(
    "ModernBert",
    read_modernbert,
    ((r"^model\.", ""),),
    module="workers.models.pre_norm_encoder:PreNormEncoder",
)
