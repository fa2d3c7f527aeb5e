"""Reads what `config.json` says of decoders with mixtures of experts.

As in `decoders.py`, each reader obeys a class of transformers and raises ModelConfigError.

- Qwen2-MoE and Qwen3-MoE (arXiv:2407.10671, arXiv:2505.09388), of which the first has an expert for
  all tokens beside the others; Mixtral (arXiv:2401.04088); OLMoE (arXiv:2409.02060).
- Phi-3.5-MoE (arXiv:2404.14219, arXiv:2409.12136), with LayerNorms.
- Granite-MoE, with Granite's multipliers.
- GLM-4.5 (arXiv:2508.06471) and Ernie-4.5, which choose experts by corrected scores.
- MiniMax-M2, with norms over all heads, of which a part is rotated.
- gpt-oss (arXiv:2508.10925): biases, attention sinks, and a gate of its own.
"""

from typing import Any

import msgspec

from workers.contract.checkpoint.config_keys import MOST_WIDTH, each
from workers.contract.checkpoint.decoders import decoder_shape, read_phi_rope
from workers.contract.checkpoint.later_decoders import read_granite
from workers.contract.checkpoint.shape_keys import ShapeKeys
from workers.contract.experts import Clamp, ExpertsConfig
from workers.contract.model_config import AttentionKind, LayerNormDecoderConfig, ModelShape, Sizes

_MOST_EXPERTS = 1 << 12
_LOCAL = {"num_experts": "num_local_experts"}


def _read_experts(
    keys: ShapeKeys, count: int, active: int, size: int | None = None, shared: int = 0, **own: Any
) -> ExpertsConfig:
    """The experts, by default as many, of which so many are active. Without a default `size` they
    have that of a dense network. `shared` of this size are every token's, as one. `own` are fields
    of an ExpertsConfig."""
    keys.ignore("output_router_logits", "router_aux_loss_coef")
    count = keys.size("num_experts", _MOST_EXPERTS, default=count)
    active = keys.size("num_experts_per_tok", default=active)
    if active > count:
        raise keys.error(f"num_experts_per_tok {active} is more than the {count} experts")
    name = "intermediate_size" if size is None else "moe_intermediate_size"
    inner = keys.size(name, MOST_WIDTH, default=size)
    if shared:
        own["shared_size"] = shared * inner
    experts = ExpertsConfig(count=count, active=active, size=inner, **own)
    groups, chosen_groups = experts.groups, experts.active_groups
    if count % groups or (groups > 1 and count < 2 * groups):
        raise keys.error(f"{count} experts cannot be divided into {groups} groups of two or more")
    if chosen_groups > groups or active > count // groups * chosen_groups:
        raise keys.error(f"{chosen_groups} of {groups} groups do not have {active} experts")
    return experts


def _dense_layers(keys: ShapeKeys, sizes: Sizes) -> tuple[int, ...]:
    """The layers without experts that Qwen's keys name."""
    step = keys.size("decoder_sparse_step", default=1)
    named = keys.read("mlp_only_layers", list[int], [])
    return tuple(i for i in range(sizes.num_layers) if i in named or (i + 1) % step)


def _windowed(keys: ShapeKeys, sizes: Sizes, full: AttentionKind) -> AttentionKind | None:
    """The kind with Qwen's window, if that is used."""
    keys.ignore("sliding_window")
    if not keys.read("use_sliding_window", bool, False):
        return None
    keys.assume({"sliding_window": 4096})
    return full.narrowed(keys.optional_size("sliding_window"), sizes.max_position)


def read_qwen2_moe(keys: ShapeKeys) -> ModelShape:
    keys.assume({"shared_expert_intermediate_size": 5632})
    sizes = keys.read_sizes()
    experts = _read_experts(
        keys,
        *(60, 4, 1408),
        dense_layers=_dense_layers(keys, sizes),
        normalised=keys.read("norm_topk_prob", bool, False),
        shared_size=keys.size("shared_expert_intermediate_size", MOST_WIDTH),
        shared_gate=True,
    )
    full, windowed = keys.read_causal(sizes), keys.read("max_window_layers", int, 28)
    narrow = _windowed(keys, sizes, full)
    usual = [narrow is None or i % 2 == 1 or i >= windowed for i in range(sizes.num_layers)]
    layers = keys.read_layers(full, narrow, usual)
    bias = keys.read("qkv_bias", bool, True)
    return decoder_shape(keys, sizes, layers, qkv_bias=bias, experts=experts)


def read_qwen3_moe(keys: ShapeKeys) -> ModelShape:
    keys.spell(_LOCAL)
    normalised = keys.read("norm_topk_prob", bool, False)
    return _qwen3_moe(keys, (128, 8, 768), normalised=normalised)


def read_qwen3_vl_moe_text(keys: ShapeKeys) -> ModelShape:
    keys.spell(_LOCAL)
    keys.ignore("norm_topk_prob")  # whatever it says, transformers normalises
    keys.neutral({"use_sliding_window": (False, None)})
    return _qwen3_moe(keys, (60, 4, 1408), stacking="either")


def _qwen3_moe(keys: ShapeKeys, usual: tuple[int, int, int], **own: Any) -> ModelShape:
    keys.neutral(each("qkv_bias", False, None) | each("use_qk_norm", True, None))
    keys.neutral({"shared_expert_intermediate_size": (0, None)})
    keys.ignore("max_window_layers")
    sizes, bias = keys.read_sizes(), keys.read("attention_bias", bool, False)
    experts = _read_experts(keys, *usual, dense_layers=_dense_layers(keys, sizes), **own)
    full = keys.read_causal(sizes)
    layers = [_windowed(keys, sizes, full) or full] * sizes.num_layers
    biases = {"qkv_bias": bias, "output_bias": bias}
    return decoder_shape(keys, sizes, layers, qk_norm="head", experts=experts, **biases)


_EXPERT_NAMES = ((r"\.w1\.", ".gate_proj."), (r"\.w2\.", ".down_proj."), (r"\.w3\.", ".up_proj."))
MIXTRAL_NAMES = ((r"\.block_sparse_moe\.", ".mlp."), *_EXPERT_NAMES)


def read_mixtral(keys: ShapeKeys) -> ModelShape:
    keys.spell(_LOCAL)
    keys.assume({"rope_theta": 1e6})
    keys.ignore("router_jitter_noise")
    sizes = keys.read_sizes()
    everything = keys.read_causal(sizes)
    narrow = everything.narrowed(keys.read_window(everything), sizes.max_position)
    experts = _read_experts(keys, 8, 2)
    layers = [narrow] * sizes.num_layers
    return decoder_shape(keys, sizes, layers, norm_eps=1e-5, experts=experts)


def read_olmoe(keys: ShapeKeys) -> ModelShape:
    keys.spell({"num_local_experts": "num_experts"})
    keys.neutral({"clip_qkv": (None,)})
    sizes, bias = keys.read_sizes(), keys.read("attention_bias", bool, False)
    normalised = keys.read("norm_topk_prob", bool, False)
    experts = _read_experts(keys, 64, 8, normalised=normalised)
    layers = keys.read_same_layers(sizes, keys.read_causal(sizes))
    own: Any = {"qkv_bias": bias, "output_bias": bias, "qk_norm": "width"}
    return decoder_shape(keys, sizes, layers, norm_eps=1e-5, experts=experts, **own)


PHIMOE_NAMES = (*MIXTRAL_NAMES, (r"\.mlp\.router\.", ".mlp.gate."))


def read_phimoe(keys: ShapeKeys) -> ModelShape:
    """With its own scales of rotated dimensions, of which one is for any length here."""
    keys.spell(_LOCAL)
    keys.assume({"rope_theta": 1e6})
    keys.ignore("expert_dropout", "input_jitter_noise")
    keys.neutral({"num_experts_per_tok": (2,)})
    sizes, bias = keys.read_sizes(), keys.read("attention_bias", bool, False)
    jitter = keys.read("router_jitter_noise", float, 0.01)
    experts = _read_experts(keys, 16, 2, scoring="sparsemixer", jitter=jitter)
    inner = keys.nested_rope()
    scale = inner.optional("short_mscale", float)
    if scale is not None:
        inner.neutral({"long_mscale": (scale,)})
        inner.assume({"attention_factor": scale})
    kind = AttentionKind(
        causal=True, scale=sizes.head_dim**-0.5, rope=read_phi_rope(keys, inner, sizes.max_position)
    )
    kind = kind.narrowed(keys.optional_size("sliding_window"), sizes.max_position)
    family = LayerNormDecoderConfig(
        hidden_act=keys.read_activation("hidden_act"),
        norm_eps=keys.read("rms_norm_eps", float, 1e-5),
        qkv_bias=bias,
        output_bias=bias,
        head_bias=keys.read("lm_head_bias", bool, False),
        experts=experts,
    )
    return keys.shape(sizes, [kind] * sizes.num_layers, family, tied=False)


GRANITEMOE_NAMES = (
    (r"\.block_sparse_moe\.", ".mlp."),
    (r"\.mlp\.input_linear\.weight", ".mlp.experts.gate_up_proj"),
    (r"\.mlp\.output_linear\.weight", ".mlp.experts.down_proj"),
    (r"\.mlp\.router\.(layer\.)?", ".mlp.gate."),
    (r"\.shared_mlp\.input_linear\.", ".mlp.shared_expert.gate_up_proj."),
    (r"\.shared_mlp\.output_linear\.", ".mlp.shared_expert.down_proj."),
)


def read_granitemoe(keys: ShapeKeys) -> ModelShape:
    keys.spell(_LOCAL)
    shared = keys.size("shared_intermediate_size", MOST_WIDTH, least=0, default=0)
    experts = _read_experts(keys, 8, 2, scoring="chosen", shared_size=shared)
    return read_granite(keys, fused_gate_up=True, experts=experts)


_SHARED = (r"\.shared_experts\.", ".shared_expert.")


def read_glm4_moe(keys: ShapeKeys) -> ModelShape:
    keys.spell({"num_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"})
    keys.assume({"partial_rotary_factor": 0.5})
    sizes, bias = keys.read_sizes(), keys.read("attention_bias", bool, False)
    dense = keys.size("first_k_dense_replace", least=0, default=1)
    shared = keys.size("n_shared_experts", _MOST_EXPERTS, default=1)
    experts = _read_experts(
        keys,
        *(128, 8, 1408),
        dense_layers=tuple(range(min(dense, sizes.num_layers))),
        scoring="sigmoid",
        normalised=keys.read("norm_topk_prob", bool, True),
        least_sum=1e-20,
        correction=True,
        groups=keys.size("n_group", _MOST_EXPERTS, default=1),
        active_groups=keys.size("topk_group", _MOST_EXPERTS, default=1),
        scale=keys.read("routed_scaling_factor", float, 1.0),
        wide_router=True,
        shared=shared,
    )
    own: Any = {"qk_norm": "head" if keys.read("use_qk_norm", bool, False) else None}
    own["further_layers"] = keys.size("num_mtp_layers", 64, least=0, default=1)
    kind = keys.read_causal(sizes, partial=True)
    layers = keys.read_same_layers(sizes, kind)
    return decoder_shape(keys, sizes, layers, norm_eps=1e-5, qkv_bias=bias, experts=experts, **own)


GLM4_MOE_NAMES = (_SHARED,)


def read_ernie_moe(keys: ShapeKeys) -> ModelShape:
    keys.spell({"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"})
    keys.assume({"rope_theta": 500_000.0})
    keys.neutral(each("moe_use_aux_free use_rmsnorm", True, None) | each("moe_gate", "topk", None))
    keys.ignore("moe_capacity", "multi_token_pred_lambda", "num_nextn_predict_layers")
    sizes, bias = keys.read_sizes(), keys.read("use_bias", bool, False)
    last = keys.read("moe_layer_end_index", int, -1)
    first = keys.size("moe_layer_start_index", least=0, default=1)
    step = keys.size("moe_layer_interval", default=1)
    sparse = range(first, (sizes.num_layers if last == -1 else last + 1))
    shared = keys.size("moe_num_shared_experts", _MOST_EXPERTS, least=0, default=2)
    experts = _read_experts(
        keys,
        *(64, 6, 1536),
        dense_layers=tuple(i for i in range(sizes.num_layers) if i not in sparse or (i + 1) % step),
        least_sum=keys.read("moe_norm_min", float, 1e-12),
        correction=True,
        wide_router=True,
        shared=shared,
    )
    biases = {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bias}
    layers, pairs = keys.read_same_layers(sizes, keys.read_causal(sizes)), sizes.head_dim
    own: Any = {"tied": True, "interleaved_dims": pairs, "experts": experts}
    return decoder_shape(keys, sizes, layers, norm_eps=1e-5, **own, **biases)


ERNIE_MOE_NAMES = (
    _SHARED,
    (r"\.moe_statics\.", ".gate."),
    (r"\.gate\.gate\.", ".gate."),
    (r"^model\.mtp_", "unused."),
)


def read_minimax_m2(keys: ShapeKeys) -> ModelShape:
    keys.spell(_LOCAL)
    keys.assume({"head_dim": 128, "rope_theta": 5e6})
    keys.neutral(
        each("use_qk_norm use_routing_bias", True, None)
        | {"qk_norm_type": ("per_layer", None), "scoring_func": ("sigmoid", None)}
        | {"shared_intermediate_size": (0, None), "sliding_window": (None,)}
    )
    if 0 in keys.read("attn_type_list", list[int], []):
        raise keys.error("attn_type_list has 0, linear attention, which is not supported")
    keys.ignore("layernorm_full_attention_beta", "layernorm_linear_attention_beta")
    keys.ignore("layernorm_mlp_beta", "mlp_intermediate_size", "mtp_transformer_layers")
    keys.ignore("num_mtp_modules", "router_jitter_noise", "shared_moe_mode", "use_mtp")
    sizes = keys.read_sizes()
    dims = keys.optional_size("rotary_dim", sizes.head_dim)
    if dims is not None:
        keys.assume({"partial_rotary_factor": dims / sizes.head_dim})
    experts = _read_experts(keys, 256, 8, scoring="sigmoid", correction=True)
    layers = keys.read_same_layers(sizes, keys.read_causal(sizes, partial=True))
    return decoder_shape(keys, sizes, layers, qk_norm="width", experts=experts)


MINIMAX_M2_NAMES = (
    *MIXTRAL_NAMES,
    (r"\.mlp\.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
)


_GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read_gpt_oss(keys: ShapeKeys) -> ModelShape:
    keys.spell(_LOCAL)
    keys.assume({"head_dim": 64, "rope_theta": 150_000.0, "sliding_window": 128})
    keys.assume_rope(_GPT_OSS_ROPE)
    keys.ignore("initial_context_length")
    sizes, bias = keys.read_sizes(), keys.read("attention_bias", bool, True)
    clamp = Clamp(
        alpha=keys.read("swiglu_alpha", float, 1.702), limit=keys.read("swiglu_limit", float, 7.0)
    )
    own: Any = {"scoring": "chosen", "router_bias": True, "bias": True, "stacking": "pairs"}
    experts = _read_experts(keys, 128, 4, clamp=clamp, **own)
    keys.neutral({"experts_per_token": (experts.active, None)})
    full = msgspec.structs.replace(keys.read_causal(sizes), sinks=True)
    sliding = full.narrowed(keys.optional_size("sliding_window"), sizes.max_position)
    layers = keys.read_periodic_layers(sizes, full, sliding, 2)
    biases = {"qkv_bias": bias, "output_bias": bias}
    return decoder_shape(keys, sizes, layers, norm_eps=1e-5, experts=experts, **biases)


GPT_OSS_NAMES = ((r"\.mlp\.router\.", ".mlp.gate."),)
