"""Reads what `config.json` says of a decoder, by family.

Each reader obeys a class of transformers and raises ModelConfigError. The first is Llama's
(arXiv:2302.13971), with grouped queries and scaled positions; the others have besides:

- Mistral (arXiv:2310.06825): layers that attend within a window. Ministral 3 and Devstral 2
  (arXiv:2601.08584): queries that grow with their positions.
- Qwen2, Qwen2.5 and Qwen3 (arXiv:2407.10671, arXiv:2412.15115, arXiv:2505.09388): biases in the
  products of queries, keys and values, or norms of queries and keys; later layers may attend within
  a window.
- Phi-3 and Phi-4 (arXiv:2404.14219, arXiv:2412.08905, arXiv:2503.01743): fused products in
  checkpoints; a part of each head may be rotated.
- EuroBERT (arXiv:2503.05500): attention in both directions.
- Gemma (arXiv:2403.08295): scaled embeddings, and norms whose weights are stored less 1. Gemma 2, 3
  and EmbeddingGemma (arXiv:2408.00118, arXiv:2503.19786, arXiv:2509.20354) also have norms after
  each block, and layers that attend within a window between others that see everything.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from workers.contract.checkpoint.config_keys import MOST_TOKENS, each
from workers.contract.checkpoint.shape_keys import ShapeKeys, default_sizes
from workers.contract.model_config import (
    ActivationName,
    AttentionKind,
    DecoderConfig,
    ModelShape,
    PoolingMode,
    QKNormKind,
    QueryGrowth,
    RopeConfig,
    Sizes,
)


def read_llama(keys: ShapeKeys) -> ModelShape:
    keys.neutral(
        each("logit_scale partial_rotary_factor", 1, None)
        | each("rope_interleaved", False, None)
        | each("llama_4_scaling sliding_window", None)
    )
    keys.ignore("is_llama_config", "max_sequence_length")
    sizes = keys.read_sizes()
    layers = keys.read_same_layers(sizes, keys.read_causal_or_not(sizes))
    return decoder_shape(keys, sizes, layers, **keys.read_biases())


def read_bidirectional_llama(keys: ShapeKeys) -> ModelShape:
    """As the code of `LlamaBidirectionalModel` and of LLM2Vec (arXiv:2404.05961), which never
    attends causally."""
    keys.neutral({"is_causal": (False, None)})
    keys.assume({"is_causal": False})
    return read_llama(keys)


def read_mistral(keys: ShapeKeys) -> ModelShape:
    keys.assume({"sliding_window": 4096})
    sizes = keys.read_sizes()
    everything = keys.read_causal_or_not(sizes)
    narrow = everything.narrowed(keys.read_window(everything), sizes.max_position)
    return decoder_shape(keys, sizes, [narrow] * sizes.num_layers)


_MINISTRAL3_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_MINISTRAL3 = default_sizes(131_072, 4096, 14_336, 34, 32, 8, 262_144, head_dim=128)


def read_ministral3(keys: ShapeKeys) -> ModelShape:
    keys.assume(_MINISTRAL3)
    keys.assume_rope(_MINISTRAL3_ROPE)
    sizes, inner = keys.read_sizes(), keys.nested_rope()
    inner.ignore("max_position_embeddings")
    theta = keys.read("rope_theta", float, 10_000.0)
    original = inner.optional_size("original_max_position_embeddings", MOST_TOKENS)
    rope = inner.read_own_rope(theta, original, sizes.max_position)
    beta = inner.read("llama_4_scaling_beta", float, 0.0)
    if beta:
        growth = QueryGrowth(beta=beta, period=original or sizes.max_position)
        rope = msgspec.structs.replace(rope, query_growth=growth)
    everything = keys.read_causal_or_not(sizes, rope)
    narrow = everything.narrowed(keys.read_window(everything), sizes.max_position)
    return decoder_shape(keys, sizes, [narrow] * sizes.num_layers, norm_eps=1e-5)


def read_qwen2(keys: ShapeKeys) -> ModelShape:
    keys.neutral({"use_mrope": (False, None)})
    sizes = keys.read_sizes()
    return decoder_shape(keys, sizes, _qwen_layers(keys, sizes), qkv_bias=True)


def read_qwen3(keys: ShapeKeys) -> ModelShape:
    keys.assume({"head_dim": 128})
    sizes = keys.read_sizes()
    layers, bias = _qwen_layers(keys, sizes), keys.read("attention_bias", bool, False)
    return decoder_shape(keys, sizes, layers, qkv_bias=bias, output_bias=bias, qk_norm="head")


def _qwen_layers(keys: ShapeKeys, sizes: Sizes) -> list[AttentionKind]:
    keys.assume({"sliding_window": 4096})
    everything = keys.read_causal_or_not(sizes)
    window = keys.read_window(everything)
    # Published checkpoints declare a window that they do not use.
    used = window if keys.read("use_sliding_window", bool, False) else None
    narrow = everything.narrowed(used, sizes.max_position) if used else None
    without = keys.read("max_window_layers", int, 28)
    usual = [used is None or layer < without for layer in range(sizes.num_layers)]
    return keys.read_layers(everything, narrow, usual)


def read_phi3(keys: ShapeKeys) -> ModelShape:
    keys.neutral(
        each("attention_bias lm_head_bias mlp_bias", False, None)
        | each("full_attn_mod interpolate_factor", 1, None)
    )
    sizes = keys.read_sizes()
    rope = read_phi_rope(keys, keys.nested_rope(), sizes.max_position)
    everything = AttentionKind(causal=True, scale=sizes.head_dim**-0.5, rope=rope)
    narrow = everything.narrowed(keys.optional_size("sliding_window"), sizes.max_position)
    layers = [narrow] * sizes.num_layers
    return decoder_shape(keys, sizes, layers, norm_eps=1e-5, fused_qkv="parts", fused_gate_up=True)


_POOLED: Mapping[str, tuple[PoolingMode, bool]] = {
    "bos": ("cls", False),
    "mean": ("mean", False),
    "late": ("mean", True),
}
"""By `classifier_pooling` the pooling, and whether it follows the classifier's first layer. Late
pooling, the mean of tokens' logits, is the logits of these states' mean."""


def read_eurobert(keys: ShapeKeys) -> ModelShape:
    keys.spell({"classifier_pooling": "clf_pooling"})
    keys.neutral({"mlp_bias": (False, None)})
    keys.ignore("bos_token", "eos_token", "mask_token", "pad_token")
    sizes, bias = keys.read_sizes(), keys.read("attention_bias", bool, False)
    kind = msgspec.structs.replace(keys.read_causal(sizes), causal=False)
    pooling, late = keys.choice("classifier_pooling", _POOLED, "late")
    own: Any = {"qkv_bias": bias, "output_bias": bias, "late_pooling": late}
    shape = decoder_shape(keys, sizes, [kind] * sizes.num_layers, norm_eps=1e-5, **own)
    return msgspec.structs.replace(shape, classifier_pooling=pooling)


_EARLIER_NAMES = {"su": "longrope", "yarn": "longrope"}
"""Earlier names of a type of scaling in Phi's configurations."""


def read_phi_rope(keys: ShapeKeys, inner: ShapeKeys, max_position: int) -> RopeConfig:
    """The embedding that `inner` describes, and other keys, of a Phi with so many positions."""
    theta = keys.read("rope_theta", float, 10_000.0)
    fraction = keys.read("partial_rotary_factor", float, 1.0)
    original = keys.optional_size("original_max_position_embeddings") or 4096
    kind = inner.read("rope_type", str, inner.read("type", str, "default"))
    kind = _EARLIER_NAMES.get(kind, kind)
    if kind not in ("default", "longrope"):
        raise keys.error(f"rope type {kind!r} is not supported for this family (longrope)")
    return RopeConfig(
        theta=inner.read("rope_theta", float, theta),
        fraction=inner.read("partial_rotary_factor", float, fraction),
        scaling=inner.read_scaling(kind, original, max_position),
    )


def decoder_shape(
    keys: ShapeKeys,
    sizes: Sizes,
    layers: Sequence[AttentionKind],
    *,
    norm_eps: float = 1e-6,
    tied: bool = False,
    **own: Any,
) -> ModelShape:
    """A decoder with Llama's keys, by default as given. `own` are fields of DecoderConfig."""
    if "hidden_act" not in own:
        own["hidden_act"] = keys.read_activation("hidden_act")
    family = DecoderConfig(norm_eps=keys.read("rms_norm_eps", float, norm_eps), **own)
    return keys.shape(sizes, layers, family, tied=tied)


_GEMMA3 = {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096}
_GEMMA2 = {**_GEMMA3, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GELU_TANH: ActivationName = "gelu_pytorch_tanh"


def read_gemma(keys: ShapeKeys) -> ModelShape:
    """As `GemmaConfig`, which reads "gelu" as its approximation by tanh, with which the first
    checkpoints were trained. transformers wrote `hidden_activation` for a time."""
    keys.assume({"head_dim": 256})
    sizes = keys.read_sizes()
    layers = [keys.read_causal(sizes)] * sizes.num_layers
    activation = keys.read_activation("hidden_act", _GELU_TANH)
    activation = _GELU_TANH if activation == "gelu" else activation
    keys.neutral({"hidden_activation": (activation, None)})
    return _gemma_shape(keys, sizes, layers, hidden_act=activation)


def read_gemma2(keys: ShapeKeys) -> ModelShape:
    keys.assume(_GEMMA2)
    sizes = keys.read_sizes()
    full = AttentionKind(
        causal=True,
        scale=keys.size("query_pre_attn_scalar") ** -0.5,
        softcap=keys.read_softcap("attn_logit_softcapping"),
        rope=keys.read_rope(sizes.max_position),
    )
    sliding = full.narrowed(keys.optional_size("sliding_window"), sizes.max_position)
    return _later_gemma(keys, sizes, full, sliding, period=2)


def read_gemma3(keys: ShapeKeys) -> ModelShape:
    keys.assume(_GEMMA3)
    # transformers reads the first, and does not obey; the second makes other windows there.
    keys.neutral({"attn_logit_softcapping": (None,), "is_causal": (True, None)})
    sizes = keys.read_sizes()
    bidirectional = keys.read("use_bidirectional_attention", bool, False)
    window = keys.optional_size("sliding_window")
    if window is not None and bidirectional:
        window = window // 2 + 1  # it counts both sides
    theta = keys.read("rope_theta", float, 1_000_000.0)
    theta_within = keys.read("rope_local_base_freq", float, 10_000.0)
    scaling = keys.nested("rope_scaling")
    rope, rope_within = keys.read_ropes(sizes.max_position, (theta, theta_within), scaling)
    scale = keys.size("query_pre_attn_scalar") ** -0.5
    full = AttentionKind(causal=not bidirectional, scale=scale, rope=rope)
    within = msgspec.structs.replace(full, rope=rope_within)
    sliding = within.narrowed(window, sizes.max_position)
    period = keys.optional_size("sliding_window_pattern") or 6
    return _later_gemma(keys, sizes, full, sliding, period, qk_norm="head")


def _later_gemma(
    keys: ShapeKeys,
    sizes: Sizes,
    full: AttentionKind,
    sliding: AttentionKind,
    period: int,
    *,
    qk_norm: QKNormKind | None = None,
) -> ModelShape:
    """Without `layer_types` the last of every `period` layers sees everything."""
    keys.ignore("_sliding_window_pattern")  # transformers writes it beside the types
    keys.ignore("cache_implementation", "hidden_act", "sliding_window_size")
    layers = keys.read_periodic_layers(sizes, full, sliding, period)
    return _gemma_shape(
        keys,
        sizes,
        layers,
        hidden_act=keys.read_activation("hidden_activation", _GELU_TANH),
        logit_softcap=keys.read_softcap("final_logit_softcapping"),
        qk_norm=qk_norm,
        output_norms=True,
    )


def _gemma_shape(
    keys: ShapeKeys,
    sizes: Sizes,
    layers: Sequence[AttentionKind],
    **own: Any,
) -> ModelShape:
    """A decoder with the features of every Gemma. `own` are fields of DecoderConfig."""
    bias = keys.read("attention_bias", bool, False)
    own |= {"unit_offset_norms": True, "embedding_scale": sizes.hidden_size**0.5}
    return decoder_shape(keys, sizes, layers, tied=True, qkv_bias=bias, output_bias=bias, **own)
