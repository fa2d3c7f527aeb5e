"""Reads what `config.json` says of decoders with LayerNorms.

As in `decoders.py`, each reader obeys a class of transformers and raises ModelConfigError. Their
names of tensors turn a checkpoint's into those of `workers/models/layer_norm_decoder.py`.

- Nemotron (arXiv:2402.16819): norms whose weights are stored less 1, and a squared ReLU.
- Command-R and Command-R7B: both blocks side by side, scaled logits, and in the second layers that
  attend within a window between others that see everything and do not rotate.
- StarCoder2 (arXiv:2402.19173), Phi-1 to Phi-2 (arXiv:2309.05463) and GPT-NeoX (arXiv:2204.06745).
- GPT-2 (Radford et al. 2019): learned positions, and weights stored by inputs.
"""

from typing import Any

import msgspec

from workers.contract.checkpoint.config_keys import each
from workers.contract.checkpoint.shape_keys import ShapeKeys
from workers.contract.model_config import (
    ActivationName,
    AttentionKind,
    LayerNormDecoderConfig,
    ModelShape,
    Sizes,
)


def _shape(
    keys: ShapeKeys,
    sizes: Sizes,
    layers: list[AttentionKind],
    *,
    act: ActivationName,
    eps: str = "layer_norm_eps",
    tied: bool = False,
    **own: Any,
) -> ModelShape:
    """A decoder with these defaults and this key of an epsilon. `own` are fields of its
    LayerNormDecoderConfig."""
    family = LayerNormDecoderConfig(
        hidden_act=keys.read_activation("hidden_act", act),
        norm_eps=keys.read(eps, float, 1e-5),
        **own,
    )
    return keys.shape(sizes, layers, family, tied=tied)


def read_nemotron(keys: ShapeKeys) -> ModelShape:
    keys.assume({"partial_rotary_factor": 0.5})
    keys.neutral({"rope_percent": (0.5, None)})
    sizes = keys.read_sizes()
    return _shape(
        keys,
        sizes,
        keys.read_same_layers(sizes, keys.read_causal(sizes, partial=True)),
        act="relu2",
        eps="norm_eps",
        gated=False,
        unit_offset_norms=True,
        **keys.read_biases(),
    )


def read_cohere(keys: ShapeKeys) -> ModelShape:
    keys.assume({"rope_theta": 500_000.0})
    keys.neutral({"use_qk_norm": (False, None)})
    keys.ignore("model_max_length")
    sizes = keys.read_sizes()
    return _cohere(keys, sizes, keys.read_same_layers(sizes, keys.read_causal(sizes)))


def read_cohere2(keys: ShapeKeys) -> ModelShape:
    keys.assume({"sliding_window": 4096})
    keys.neutral(
        each("rotary_pct", 1, None)
        | each("use_embedding_sharing use_gated_activation use_parallel_block", True, None)
        | each("order_of_interleaved_layers", "local_attn_first", None)
        | each("position_embedding_type", "rope_gptj", None)
    )
    keys.ignore("_sliding_window_pattern", "cache_implementation", "layer_switch")
    keys.ignore("use_parallel_embedding")
    sizes = keys.read_sizes()
    rotated, window = keys.read_causal(sizes), keys.size("sliding_window")
    full = msgspec.structs.replace(rotated, rope=None)
    period = keys.size("sliding_window_pattern", default=4)
    narrow = rotated.narrowed(window, sizes.max_position)
    return _cohere(keys, sizes, keys.read_periodic_layers(sizes, full, narrow, period))


def _cohere(keys: ShapeKeys, sizes: Sizes, layers: list[AttentionKind]) -> ModelShape:
    bias = keys.read("attention_bias", bool, False)
    return _shape(
        keys,
        sizes,
        layers,
        act="silu",
        tied=True,
        norm_bias=False,
        parallel=True,
        shared_norm=True,
        qkv_bias=bias,
        output_bias=bias,
        interleaved_dims=sizes.head_dim,
        logit_scale=keys.read("logit_scale", float, 0.0625),
    )


def read_starcoder2(keys: ShapeKeys) -> ModelShape:
    keys.neutral(
        each("mlp_type", "default", None)
        | each("norm_type", "layer_norm", None)
        | each("scale_attn_weights", True, None)
    )
    keys.ignore("activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon")
    keys.ignore("residual_dropout", "scale_attention_softmax_in_fp32")
    sizes, bias = keys.read_sizes(), keys.read("use_bias", bool, True)
    window = keys.optional_size("sliding_window")
    narrow = keys.read_causal(sizes).narrowed(window, sizes.max_position)
    return _shape(
        keys,
        sizes,
        [narrow] * sizes.num_layers,
        act="gelu_pytorch_tanh",
        eps="norm_epsilon",
        tied=True,
        gated=False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )


STARCODER2_NAMES = ((r"\.mlp\.c_fc\.", ".mlp.up_proj."), (r"\.mlp\.c_proj\.", ".mlp.down_proj."))

_BIASES: dict[str, Any] = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}


def read_phi(keys: ShapeKeys) -> ModelShape:
    keys.assume({"partial_rotary_factor": 0.5})
    keys.neutral({"qk_layernorm": (False, None)})
    sizes = keys.read_sizes()
    return _shape(
        keys,
        sizes,
        keys.read_same_layers(sizes, keys.read_causal(sizes, partial=True)),
        act="gelu_new",
        gated=False,
        parallel=True,
        shared_norm=True,
        head_bias=True,
        **_BIASES,
    )


PHI_NAMES = (
    (r"\.self_attn\.dense\.", ".self_attn.o_proj."),
    (r"\.mlp\.fc1\.", ".mlp.up_proj."),
    (r"\.mlp\.fc2\.", ".mlp.down_proj."),
    (r"(^|\.)final_layernorm\.", r"\1norm."),
)


def read_gpt_neox(keys: ShapeKeys) -> ModelShape:
    keys.spell({"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"})
    keys.assume({"rotary_pct": 0.25, "rotary_emb_base": 10_000.0})
    sizes, bias = keys.read_sizes(), keys.read("attention_bias", bool, True)
    return _shape(
        keys,
        sizes,
        keys.read_same_layers(sizes, keys.read_causal(sizes, partial=True)),
        act="gelu",
        gated=False,
        parallel=keys.read("use_parallel_residual", bool, True),
        fused_qkv="groups",
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
    )


GPT_NEOX_NAMES = (
    (r"^gpt_neox\.", ""),
    (r"^layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)$", "unused."),
    (r"^embed_in\.", "embed_tokens."),
    (r"^embed_out\.", "lm_head."),
    (r"^final_layer_norm\.", "norm."),
    (r"\.attention\.query_key_value\.", ".self_attn.qkv_proj."),
    (r"\.attention\.dense\.", ".self_attn.o_proj."),
    (r"\.dense_h_to_4h\.", ".up_proj."),
    (r"\.dense_4h_to_h\.", ".down_proj."),
)

_GPT2_SPELLING = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
}


def read_gpt2(keys: ShapeKeys) -> ModelShape:
    keys.spell(_GPT2_SPELLING)
    keys.neutral(
        each("scale_attn_weights", True, None)
        | each("scale_attn_by_inverse_layer_idx", False, None)
    )
    keys.ignore("attn_pdrop", "n_ctx", "n_special", "predict_special_tokens")
    keys.ignore("reorder_and_upcast_attn", "summary_activation", "summary_proj_to_labels")
    keys.ignore("summary_type", "summary_use_proj")
    sizes = keys.read_sizes(widening=4)
    kind = AttentionKind(causal=True, scale=sizes.head_dim**-0.5)
    return _shape(
        keys,
        sizes,
        keys.read_same_layers(sizes, kind),
        act="gelu_new",
        eps="layer_norm_epsilon",
        tied=True,
        gated=False,
        fused_qkv="parts",
        learned_positions=True,
        transposed=True,
        **_BIASES,
    )


GPT2_NAMES = (
    (r"^transformer\.", ""),
    (r"^h\.\d+\.attn\.(bias|masked_bias)$", "unused."),
    (r"^h\.", "layers."),
    (r"^wte\.", "embed_tokens."),
    (r"^wpe\.", "model.embed_positions."),
    (r"^ln_f\.", "norm."),
    (r"\.ln_1\.", ".input_layernorm."),
    (r"\.ln_2\.", ".post_attention_layernorm."),
    (r"\.attn\.c_attn\.", ".self_attn.qkv_proj."),
    (r"\.attn\.c_proj\.", ".self_attn.o_proj."),
    (r"\.c_fc\.", ".up_proj."),
    (r"\.c_proj\.", ".down_proj."),
)
