"""Gemma (Gemma Team 2024, arXiv:2403.08295): a Llama with scaled embeddings, whose norms' weights
are stored less 1. Gemma 2 (Gemma Team 2024, arXiv:2408.00118), Gemma 3 (Gemma Team 2025,
arXiv:2503.19786) and EmbeddingGemma (Schechter Vera et al. 2025, arXiv:2509.20354) also have norms
after each block, and layers that attend within a window between others that see everything."""

import dataclasses
from collections.abc import Sequence

import msgspec

from workers.contract.attention_kind import AttentionKind
from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.config_keys.rope import read_rope, rope_of
from workers.contract.config_keys.sizes import read_activation, read_sizes
from workers.contract.config_keys.windows import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    narrowed,
    read_causal,
    read_layers,
)
from workers.contract.families.base import Family, decoder, shape_of
from workers.contract.model_shape import (
    ActivationName,
    DecoderConfig,
    ModelShape,
    Sizes,
    WrapperConfig,
)
from workers.contract.rope_config import RopeConfig

_GEMMA1 = {
    "vocab_size": 256_000,
    "hidden_size": 3072,
    "intermediate_size": 24_576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
}
_DEFAULTS = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GEMMA2 = {
    "vocab_size": 256_000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3 = {"vocab_size": 262_208, "max_position_embeddings": 131_072}
_GELU_TANH: ActivationName = "gelu_pytorch_tanh"


def read_gemma(keys: ConfigKeys) -> ModelShape:
    """As `GemmaConfig` of transformers. Raises ModelConfigError."""
    keys.assume(_GEMMA1)
    keys.neutral({"use_bidirectional_attention": (False, None)})
    sizes = read_sizes(keys)
    everything = read_causal(keys, sizes)
    family = _family(keys, sizes, _activation(keys))
    return shape_of(keys, sizes, [everything] * sizes.num_layers, family, tied=True)


def read_gemma2(keys: ConfigKeys) -> ModelShape:
    """As `Gemma2Config` of transformers. Raises ModelConfigError."""
    keys.assume(_DEFAULTS | _GEMMA2)
    keys.neutral({"use_bidirectional_attention": (False, None)})
    sizes = read_sizes(keys)
    full = AttentionKind(
        causal=True,
        scale=keys.size("query_pre_attn_scalar") ** -0.5,
        softcap=_softcap(keys, "attn_logit_softcapping"),
        rope=read_rope(keys, sizes.max_position),
    )
    sliding = narrowed(full, keys.optional_size("sliding_window"), sizes.max_position)
    return _shape(keys, sizes, _layers(keys, sizes, full, sliding, period=2), qk_norm=False)


def read_gemma3(keys: ConfigKeys) -> ModelShape:
    """As `Gemma3TextConfig` of transformers. Raises ModelConfigError."""
    keys.assume(_DEFAULTS | _GEMMA3)
    keys.neutral({"attn_logit_softcapping": (None,)})  # transformers reads it, and does not obey
    sizes = read_sizes(keys)
    bidirectional = keys.read("use_bidirectional_attention", bool, False)
    window = keys.optional_size("sliding_window")
    if window is not None and bidirectional:
        window = window // 2 + 1  # it counts both sides
    rope, rope_within = _ropes(keys, sizes.max_position)
    scale = keys.size("query_pre_attn_scalar") ** -0.5
    full = AttentionKind(causal=not bidirectional, scale=scale, rope=rope)
    within = msgspec.structs.replace(full, rope=rope_within)
    sliding = narrowed(within, window, sizes.max_position)
    period = keys.optional_size("sliding_window_pattern") or 6
    return _shape(keys, sizes, _layers(keys, sizes, full, sliding, period), qk_norm=True)


def read_gemma3_wrapper(keys: ConfigKeys) -> ModelShape:
    """The language model of `Gemma3Config` of transformers. Raises ModelConfigError."""
    keys.ignore(
        "boi_token_index",
        "eoi_token_index",
        "image_token_index",
        "mm_tokens_per_image",
        "vision_config",
    )
    shape = read_gemma3(keys.nested("text_config"))
    if shape.tie_word_embeddings != keys.read("tie_word_embeddings", bool, True):
        raise keys.error("tie_word_embeddings and text_config.tie_word_embeddings differ")
    return msgspec.structs.replace(shape, wrapper=WrapperConfig())


def _softcap(keys: ConfigKeys, name: str) -> float | None:
    cap = keys.optional(name, float)
    if cap is not None and cap <= 0:
        raise keys.error(f"{name} {cap:g} is not more than 0")
    return cap


def _ropes(keys: ConfigKeys, max_position: int) -> tuple[RopeConfig, RopeConfig]:
    """For layers that see everything, and for those with a window.

    transformers 5 writes them by the types of layers; earlier versions scale the first alone.
    """
    theta = keys.read("rope_theta", float, 1_000_000.0)
    theta_within = keys.read("rope_local_base_freq", float, 10_000.0)
    by_type, scaling = keys.nested("rope_parameters"), keys.nested("rope_scaling")
    full = by_type.nested(FULL_ATTENTION) if keys.has("rope_parameters") else scaling
    within = by_type.nested(SLIDING_ATTENTION)
    return (
        rope_of(full, theta, None, max_position),
        rope_of(within, theta_within, None, max_position),
    )


def _layers(
    keys: ConfigKeys, sizes: Sizes, full: AttentionKind, sliding: AttentionKind, period: int
) -> Sequence[AttentionKind]:
    """One a layer. Without `layer_types` the last of every `period` layers sees everything."""
    keys.ignore("_sliding_window_pattern")  # transformers writes it beside the types
    layers = range(1, sizes.num_layers + 1)
    default = [sliding if layer % period else full for layer in layers]
    return read_layers(keys, {FULL_ATTENTION: full, SLIDING_ATTENTION: sliding}, default)


def _activation(keys: ConfigKeys) -> ActivationName:
    """The first checkpoints say "gelu" where their training had its approximation by tanh, which
    transformers takes for both. It wrote `hidden_activation` for a time, and does not read it."""
    name = read_activation(keys, "hidden_act", _GELU_TANH)
    name = _GELU_TANH if name == "gelu" else name
    keys.neutral({"hidden_activation": (name, None)})
    return name


def _shape(
    keys: ConfigKeys, sizes: Sizes, layers: Sequence[AttentionKind], *, qk_norm: bool
) -> ModelShape:
    keys.ignore("cache_implementation", "hidden_act", "sliding_window_size")
    family = msgspec.structs.replace(
        _family(keys, sizes, read_activation(keys, "hidden_activation", _GELU_TANH)),
        qk_norm=qk_norm,
        sandwich_norms=True,
        logit_softcap=_softcap(keys, "final_logit_softcapping"),
    )
    return shape_of(keys, sizes, layers, family, tied=True)


def _family(keys: ConfigKeys, sizes: Sizes, hidden_act: ActivationName) -> DecoderConfig:
    """What every Gemma has."""
    bias = keys.read("attention_bias", bool, False)
    return DecoderConfig(
        hidden_act=hidden_act,
        norm_eps=keys.read("rms_norm_eps", float, 1e-6),
        qkv_bias=bias,
        output_bias=bias,
        unit_offset_norms=True,
        embedding_scale=sizes.hidden_size**0.5,
    )


def _with_wrapper(rows: dict[str, Family]) -> dict[str, Family]:
    """And what generates beside a vision tower, whose language model is served alone."""
    name, inner = "Gemma3ForConditionalGeneration", rows["Gemma3ForCausalLM"]
    wrapper = dataclasses.replace(inner, read_shape=read_gemma3_wrapper, base=name)
    return rows | {name: wrapper}


GEMMA = decoder("Gemma", read_gemma)
GEMMA2 = decoder("Gemma2", read_gemma2)
GEMMA3 = _with_wrapper(decoder("Gemma3", read_gemma3, alone="Gemma3TextModel"))
