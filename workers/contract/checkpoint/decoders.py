"""Llama (Touvron et al. 2023, arXiv:2302.13971), with grouped queries and scaled positions."""

import dataclasses
from collections.abc import Sequence

import msgspec

from workers.contract.checkpoint.config_keys import ConfigKeys
from workers.contract.checkpoint.family import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    Family,
    decoder,
    narrowed,
    read_activation,
    read_causal,
    read_layers,
    read_rope,
    read_scaling,
    read_sizes,
    read_window,
    rope_keys,
    rope_of,
    shape_of,
)
from workers.contract.model_config import (
    ActivationName,
    AttentionKind,
    DecoderConfig,
    ModelShape,
    RopeConfig,
    Sizes,
    WrapperConfig,
)


def read_llama(keys: ConfigKeys) -> ModelShape:
    """As `LlamaConfig` of transformers. Raises ModelConfigError."""
    keys.neutral(
        {
            "is_causal": (True, None),
            "llama_4_scaling": (None,),
            "logit_scale": (1, None),
            "partial_rotary_factor": (1, None),
            "rope_interleaved": (False, None),
            "sliding_window": (None,),
            "use_bidirectional_attention": (False, None),
        }
    )
    keys.ignore("is_llama_config", "max_sequence_length")
    sizes, bias = read_sizes(keys), keys.read("attention_bias", bool, False)
    everything = read_causal(keys, sizes)
    layers = read_layers(keys, {FULL_ATTENTION: everything}, [everything] * sizes.num_layers)
    family = DecoderConfig(
        hidden_act=read_activation(keys, "hidden_act"),
        norm_eps=keys.read("rms_norm_eps", float, 1e-6),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=keys.read("mlp_bias", bool, False),
    )
    return shape_of(keys, sizes, layers, family, tied=False)


LLAMA = decoder("Llama", read_llama)


def read_mistral(keys: ConfigKeys) -> ModelShape:
    """As `MistralConfig` of transformers. Raises ModelConfigError."""
    sizes = read_sizes(keys)
    everything = read_causal(keys, sizes)
    narrow = narrowed(everything, read_window(keys, 4096), sizes.max_position)
    family = DecoderConfig(
        hidden_act=read_activation(keys, "hidden_act"),
        norm_eps=keys.read("rms_norm_eps", float, 1e-6),
    )
    return shape_of(keys, sizes, [narrow] * sizes.num_layers, family, tied=False)


MISTRAL = decoder("Mistral", read_mistral)


def read_qwen2(keys: ConfigKeys) -> ModelShape:
    """As `Qwen2Config` of transformers. Raises ModelConfigError."""
    keys.neutral({"use_mrope": (False, None)})
    return _shape(keys, read_sizes(keys), qkv_bias=True, output_bias=False, qk_norm=False)


def read_qwen3(keys: ConfigKeys) -> ModelShape:
    """As `Qwen3Config` of transformers. Raises ModelConfigError."""
    sizes = read_sizes(keys, head_dim=128)
    bias = keys.read("attention_bias", bool, False)
    return _shape(keys, sizes, qkv_bias=bias, output_bias=bias, qk_norm=True)


def _shape(
    keys: ConfigKeys, sizes: Sizes, *, qkv_bias: bool, output_bias: bool, qk_norm: bool
) -> ModelShape:
    everything = read_causal(keys, sizes)
    window = read_window(keys, 4096)
    # Published checkpoints declare a window that they do not use.
    used = window if keys.read("use_sliding_window", bool, False) else None
    narrow = narrowed(everything, used, sizes.max_position)
    without = keys.read("max_window_layers", int, 28)
    default = [everything if layer < without else narrow for layer in range(sizes.num_layers)]
    kinds = {FULL_ATTENTION: everything, SLIDING_ATTENTION: narrow}
    layers = read_layers(keys, kinds, default)
    family = DecoderConfig(
        hidden_act=read_activation(keys, "hidden_act"),
        norm_eps=keys.read("rms_norm_eps", float, 1e-6),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
    )
    return shape_of(keys, sizes, layers, family, tied=False)


QWEN2 = decoder("Qwen2", read_qwen2)
QWEN3 = decoder("Qwen3", read_qwen3)


_EARLIER_NAMES = {"su": "longrope", "yarn": "longrope"}
"""What configurations of this family called a type of scaling before it had a name."""


def read_phi3(keys: ConfigKeys) -> ModelShape:
    """As `Phi3Config` of transformers. Raises ModelConfigError."""
    keys.neutral(
        {
            "attention_bias": (False, None),
            "full_attn_mod": (1, None),
            "interpolate_factor": (1, None),
            "lm_head_bias": (False, None),
            "mlp_bias": (False, None),
        }
    )
    sizes = read_sizes(keys)
    rope = _read_rope(keys, sizes.max_position)
    everything = AttentionKind(causal=True, scale=sizes.head_dim**-0.5, rope=rope)
    narrow = narrowed(everything, read_window(keys, None), sizes.max_position)
    family = DecoderConfig(
        hidden_act=read_activation(keys, "hidden_act"),
        norm_eps=keys.read("rms_norm_eps", float, 1e-5),
        fused_projections=True,
    )
    return shape_of(keys, sizes, [narrow] * sizes.num_layers, family, tied=False)


def _read_rope(keys: ConfigKeys, max_position: int) -> RopeConfig:
    theta = keys.read("rope_theta", float, 10_000.0)
    fraction = keys.read("partial_rotary_factor", float, 1.0)
    original = keys.optional_size("original_max_position_embeddings") or 4096
    inner = rope_keys(keys)
    kind = inner.read("rope_type", str, inner.read("type", str, "default"))
    kind = _EARLIER_NAMES.get(kind, kind)
    if kind not in ("default", "longrope"):
        raise keys.error(f"rope type {kind!r} is not supported for this family (longrope)")
    return RopeConfig(
        theta=inner.read("rope_theta", float, theta),
        fraction=inner.read("partial_rotary_factor", float, fraction),
        scaling=read_scaling(inner, kind, original, max_position),
    )


PHI3 = decoder("Phi3", read_phi3)


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
    return _gemma_shape(keys, sizes, _layers(keys, sizes, full, sliding, period=2), qk_norm=False)


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
    return _gemma_shape(keys, sizes, _layers(keys, sizes, full, sliding, period), qk_norm=True)


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


def _gemma_shape(
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
