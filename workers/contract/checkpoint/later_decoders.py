"""Reads what `config.json` says of decoders that are a Llama but for a few things.

As in `decoders.py`, each reader obeys a class of transformers and raises ModelConfigError.

- SmolLM3 and EXAONE-4 (arXiv:2507.11407): some layers do not rotate queries and keys.
- Granite 3: multipliers of embeddings, of blocks' outputs, of scores and of logits.
- Seed-OSS, Falcon3 (a Llama) and Helium: biases, or rotated pairs side by side.
- OLMo-2 and OLMo-3 (arXiv:2501.00656): norms behind blocks, and over all heads of queries and keys.
- GLM-4 (arXiv:2406.12793) and Ernie-4.5: rotated pairs side by side, in GLM of half of each head.
- Hunyuan: norms of rotated queries and keys.
- Arcee: no gate, and a squared ReLU.
- MiMo (arXiv:2505.07608): a Qwen2 whose layers that predict further tokens are not used.
- Baichuan and Baichuan 2 (arXiv:2309.10305): fused queries, keys and values, and in the second an
  LM head whose rows have length 1.
- InternLM2 (arXiv:2403.17297): its own names, with queries, keys and values in groups.
"""

from typing import Any

import msgspec

from workers.contract.checkpoint.config_keys import each
from workers.contract.checkpoint.decoders import decoder_shape, read_qwen2
from workers.contract.checkpoint.shape_keys import ShapeKeys
from workers.contract.model_config import (
    AttentionKind,
    DecoderConfig,
    ModelShape,
    RopeConfig,
    Sizes,
)


def read_smollm3(keys: ShapeKeys) -> ModelShape:
    """`no_rope_layers` has 1 for layers whose queries and keys are rotated."""
    keys.assume({"rope_theta": 2_000_000.0})
    keys.ignore("max_window_layers")
    sizes = keys.read_sizes()
    interval = keys.optional_size("no_rope_layer_interval") or 4
    usual = [int(layer % interval != 0) for layer in range(1, sizes.num_layers + 1)]
    rotates = keys.read("no_rope_layers", list[int], usual)[: sizes.num_layers]
    if len(rotates) < sizes.num_layers:
        found = f"{len(rotates)} entries for {sizes.num_layers} layers"
        raise keys.error(f"no_rope_layers has {found}")
    window = keys.optional_size("sliding_window")
    used = window if keys.read("use_sliding_window", bool, False) else None
    full = keys.read_causal(sizes)
    narrow = full.narrowed(window, sizes.max_position)
    kinds = keys.read_layers(full, narrow, [used is None or own != 0 for own in rotates])
    layers = [kind if own else _unrotated(kind) for kind, own in zip(kinds, rotates, strict=True)]
    return decoder_shape(keys, sizes, layers, tied=True, **keys.read_biases())


def _unrotated(kind: AttentionKind) -> AttentionKind:
    return msgspec.structs.replace(kind, rope=None)


def read_granite(keys: ShapeKeys, **own: Any) -> ModelShape:
    """A Granite, with more fields of its DecoderConfig.

    With all hidden states divided by the blocks' multiplier no block needs it: norms are the
    same if their epsilon is divided by its square."""
    sizes = keys.read_sizes()
    scales = {
        name: keys.read(name, float, 1.0)
        for name in ("attention_multiplier", "logits_scaling", "residual_multiplier")
    }
    for name, scale in scales.items():
        if scale <= 0:
            raise keys.error(f"{name} {scale:g} is not more than 0")
    attention, logits, blocks = scales.values()
    kind = msgspec.structs.replace(keys.read_causal(sizes), scale=attention)
    family = DecoderConfig(
        hidden_act=keys.read_activation("hidden_act"),
        norm_eps=keys.read("rms_norm_eps", float, 1e-6) / blocks / blocks,
        embedding_scale=keys.read("embedding_multiplier", float, 1.0) / blocks,
        logit_scale=1 / logits,
        **keys.read_biases(),
        **own,
    )
    return keys.shape(sizes, keys.read_same_layers(sizes, kind), family, tied=False)


def read_seed_oss(keys: ShapeKeys) -> ModelShape:
    keys.assume({"head_dim": 128})
    keys.ignore("residual_dropout")
    sizes = keys.read_sizes()
    biases = keys.read_biases(attention=True)
    biases["output_bias"] = keys.read("attention_out_bias", bool, False)
    return decoder_shape(
        keys, sizes, keys.read_same_layers(sizes, keys.read_causal(sizes)), **biases
    )


def read_olmo2(keys: ShapeKeys) -> ModelShape:
    sizes = keys.read_sizes()
    return _olmo(keys, sizes, keys.read_same_layers(sizes, keys.read_causal(sizes)))


def read_olmo3(keys: ShapeKeys) -> ModelShape:
    """Only layers that attend to everything have scaled positions."""
    keys.assume({"sliding_window": 4096})
    sizes = keys.read_sizes()
    theta = keys.read("rope_theta", float, 500_000.0)
    scaling = keys.nested("rope_scaling")
    rope, rope_within = keys.read_ropes(sizes.max_position, (theta, theta), scaling)
    full = AttentionKind(causal=True, scale=sizes.head_dim**-0.5, rope=rope)
    within = msgspec.structs.replace(full, rope=rope_within)
    sliding = within.narrowed(keys.optional_size("sliding_window"), sizes.max_position)
    return _olmo(keys, sizes, keys.read_periodic_layers(sizes, full, sliding, 4))


def _olmo(keys: ShapeKeys, sizes: Sizes, layers: list[AttentionKind]) -> ModelShape:
    bias = keys.read("attention_bias", bool, False)
    return decoder_shape(
        keys,
        sizes,
        layers,
        norm_eps=1e-5,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="width",
        input_norms=False,
        output_norms=True,
    )


def read_exaone4(keys: ShapeKeys) -> ModelShape:
    """Beside layers with windows, those that attend to everything do not rotate."""
    keys.assume({"sliding_window": 4096})
    sizes = keys.read_sizes()
    full = keys.read_causal(sizes)
    window, period = keys.optional_size("sliding_window"), 1
    sliding = full.narrowed(window, sizes.max_position)
    if keys.optional("layer_types", list[str]) is not None:
        keys.ignore("sliding_window_pattern")  # perhaps a text such as "LLLG"
    elif window is not None:
        period = keys.size("sliding_window_pattern", default=4)
    everything = full if window is None else _unrotated(full)
    return decoder_shape(
        keys,
        sizes,
        keys.read_periodic_layers(sizes, everything, sliding, period),
        norm_eps=1e-5,
        qk_norm="head",
        input_norms=False,
        output_norms=True,
    )


def read_glm(keys: ShapeKeys, *, output_norms: bool = False) -> ModelShape:
    keys.assume({"head_dim": 128, "partial_rotary_factor": 0.5})
    sizes = keys.read_sizes()
    kind = keys.read_causal(sizes, partial=True)
    return decoder_shape(
        keys,
        sizes,
        keys.read_same_layers(sizes, kind),
        norm_eps=1.5625e-07,
        qkv_bias=keys.read("attention_bias", bool, True),
        fused_gate_up=True,
        interleaved_dims=_rotated_dims(sizes, kind),
        output_norms=output_norms,
    )


def read_glm4(keys: ShapeKeys) -> ModelShape:
    return read_glm(keys, output_norms=True)


GLM4_NAMES = (
    (r"\.post_attention_layernorm\.", ".pre_feedforward_layernorm."),
    (r"\.post_self_attn_layernorm\.", ".post_attention_layernorm."),
    (r"\.post_mlp_layernorm\.", ".post_feedforward_layernorm."),
)


def _rotated_dims(sizes: Sizes, kind: AttentionKind) -> int:
    return 0 if kind.rope is None else kind.rope.rotary_dim(sizes.head_dim)


def read_ernie(keys: ShapeKeys) -> ModelShape:
    keys.assume({"head_dim": 128, "rope_theta": 500_000.0})
    sizes = keys.read_sizes()
    kind, bias = keys.read_causal(sizes), keys.read("use_bias", bool, False)
    return decoder_shape(
        keys,
        sizes,
        keys.read_same_layers(sizes, kind),
        norm_eps=1e-5,
        tied=True,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        interleaved_dims=sizes.head_dim,
    )


def read_helium(keys: ShapeKeys) -> ModelShape:
    keys.assume({"head_dim": 128, "rope_theta": 100_000.0})
    sizes = keys.read_sizes()
    layers = keys.read_same_layers(sizes, keys.read_causal(sizes))
    own = keys.read_biases() | {"output_bias": False}
    return decoder_shape(keys, sizes, layers, norm_eps=1e-8, interleaved_dims=sizes.head_dim, **own)


def read_hunyuan(keys: ShapeKeys) -> ModelShape:
    keys.neutral(
        each("add_classification_head mlp_bias use_cla", False, None)
        | each("use_qk_norm use_rotary_pos_emb", True, None)
        | each("norm_type", "rms", "hf_rms", None)
    )
    keys.ignore("attention_head_dim", "cla_share_factor", "class_num", "dense_list", "eod_token_id")
    keys.ignore("im_end_id", "im_newline_id", "im_start_id", "mask_init_id", "org_vocab_size")
    keys.ignore("pad_id", "pool_type", "text_end_id", "text_start_id")
    sizes = keys.read_sizes()
    rope = _hunyuan_rope(keys, sizes)
    kind = AttentionKind(causal=True, scale=sizes.head_dim**-0.5, rope=rope)
    layers = keys.read_same_layers(sizes, kind)
    return decoder_shape(
        keys, sizes, layers, norm_eps=1e-5, qk_norm="rotated", **keys.read_biases()
    )


_MOST_ALPHA = 1e12
"""More than any that can be meant; its powers are finite."""


def _hunyuan_rope(keys: ShapeKeys, sizes: Sizes) -> RopeConfig:
    """A "dynamic" scaling with `alpha` is a larger base, whatever the length of a text."""
    theta, inner, dim = keys.read("rope_theta", float, 10_000.0), keys.nested_rope(), sizes.head_dim
    alpha = inner.optional("alpha", float)
    if alpha is None:
        return inner.read_own_rope(theta, None, sizes.max_position)
    if not 0 < alpha < _MOST_ALPHA or dim <= 2:
        raise keys.error(f"rope alpha {alpha:g} is not supported for heads of {dim}")
    inner.neutral(each("type rope_type", "dynamic", None))
    inner.ignore("beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim")
    return RopeConfig(theta=inner.read("rope_theta", float, theta) * alpha ** (dim / (dim - 2)))


HUNYUAN_NAMES = ((r"\.query_layernorm\.", ".q_norm."), (r"\.key_layernorm\.", ".k_norm."))


def read_arcee(keys: ShapeKeys) -> ModelShape:
    sizes = keys.read_sizes()
    layers = keys.read_same_layers(sizes, keys.read_causal(sizes))
    activation = keys.read_activation("hidden_act", "relu2")
    return decoder_shape(
        keys, sizes, layers, norm_eps=1e-5, hidden_act=activation, gated=False, **keys.read_biases()
    )


def read_mimo(keys: ShapeKeys) -> ModelShape:
    keys.neutral({"attention_bias": (True, None)})
    keys.ignore("num_nextn_predict_layers")
    return read_qwen2(keys)


MIMO_NAMES = ((r"^model\.mtp_layers\.", "unused."),)


def read_baichuan(keys: ShapeKeys, *, normed_head: bool = False) -> ModelShape:
    """Obeys the checkpoints' own code, of which transformers has no class. Models of 13B, which
    declare no positions, have another attention."""
    keys.ignore("_from_model_config", "model_max_length", "z_loss_weight")
    sizes = keys.read_sizes()
    layers = keys.read_same_layers(sizes, keys.read_causal(sizes))
    return decoder_shape(keys, sizes, layers, fused_qkv="parts", normed_head=normed_head)


def read_baichuan2(keys: ShapeKeys) -> ModelShape:
    keys.neutral({"tie_word_embeddings": (False, None)})
    return read_baichuan(keys, normed_head=True)


BAICHUAN_NAMES = ((r"\.self_attn\.W_pack\.", ".self_attn.qkv_proj."),)


def read_internlm2(keys: ShapeKeys) -> ModelShape:
    """Obeys the checkpoints' own code, of which transformers has no class."""
    sizes, bias = keys.read_sizes(), keys.read("bias", bool, True)
    layers = keys.read_same_layers(sizes, keys.read_causal(sizes))
    return decoder_shape(keys, sizes, layers, qkv_bias=bias, output_bias=bias, fused_qkv="groups")


INTERNLM2_NAMES = (
    (r"(^|\.)tok_embeddings\.", r"\1embed_tokens."),
    (r"\.attention\.wqkv\.", ".self_attn.qkv_proj."),
    (r"\.attention\.wo\.", ".self_attn.o_proj."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
    (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
    (r"^output\.", "lm_head."),
)
