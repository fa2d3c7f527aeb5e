"""A tiny model of the decoders that are a Llama but for a few things, and what spoils each."""

from typing import Any

import torch

from tests.workers.checkpoints import LLAMA
from tests.workers.contract.checkpoint.config_files import YARN
from tests.workers.models.decoders import LIMIT, WINDOW
from tests.workers.models.tiny_models import Spoilt, TinyModel, fields, keys, weights

_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_YARN = YARN | {"rope_theta": 10_000.0, "original_max_position_embeddings": 16}
_MIXED = ["sliding_attention", "full_attention"] * 2
_BIASES = {
    "qkv_bias": weights(r"[qkv]_proj\.bias", 0.0),
    "output_bias": weights(r"o_proj\.bias", 0.0),
    "mlp_bias": weights(r"mlp.*bias", 0.0),
}
_BIASES_OF_ATTENTION = {name: _BIASES[name] for name in ("qkv_bias", "output_bias")}
_HALF = _ROPE | {"partial_rotary_factor": 0.5}


def _grown(tensor: torch.Tensor) -> torch.Tensor:
    """A norm's weight whose numbers differ, wherever a pair is."""
    return tensor * torch.linspace(0.5, 2.0, len(tensor))


_NORMS_BEHIND = {
    "attention_norm": weights("post_attention_layernorm", 1.0),
    "down_norm": weights("post_feedforward_layernorm", 1.0),
    "query_norm": weights("q_norm", 1.0),
    "key_norm": weights("k_norm", _grown),
}


def _tiny(
    architecture: str, spoilt: dict[str, Spoilt] | None = None, *, edge: int = 0, **changes: Any
) -> TinyModel:
    return TinyModel(
        architecture=f"{architecture}ForCausalLM",
        config=LLAMA | {"max_position_embeddings": LIMIT} | changes,
        edges=(edge,) if edge else (),
        spoilt=spoilt or {},
    )


_GLM: dict[str, Any] = {"head_dim": 24, "pad_token_id": 0, "rope_parameters": _HALF}
_INTERLEAVED = {"pairs": fields(interleaved_dims=0)}

LATER_DECODERS: dict[str, TinyModel] = {
    "smollm3": _tiny(
        "SmolLM3",
        {"rotated": keys(no_rope_layers=[1, 1, 1, 1])},
        pad_token_id=0,
        no_rope_layers=[1, 0, 1, 0],
    ),
    "smollm3_windows": _tiny(
        "SmolLM3",
        {"window": keys(sliding_window=WINDOW + 1), **_BIASES},
        edge=WINDOW,
        pad_token_id=0,
        no_rope_layer_interval=2,
        use_sliding_window=True,
        sliding_window=WINDOW,
        attention_bias=True,
        mlp_bias=True,
    ),
    "granite": _tiny(
        "Granite",
        {
            name: keys(**{name: 1.0})
            for name in (
                "embedding_multiplier",
                "residual_multiplier",
                "attention_multiplier",
                "logits_scaling",
            )
        },
        embedding_multiplier=6.0,
        residual_multiplier=0.3,
        attention_multiplier=0.1,
        logits_scaling=0.5,
        tie_word_embeddings=True,
    ),
    "granite_biases": _tiny("Granite", _BIASES, attention_bias=True, mlp_bias=True),
    "seed_oss": _tiny("SeedOss", {"qkv_bias": _BIASES["qkv_bias"]}, head_dim=32),
    "seed_oss_biases": _tiny(
        "SeedOss",
        {name: _BIASES[name] for name in ("output_bias", "mlp_bias")},
        head_dim=16,
        attention_out_bias=True,
        attention_bias=False,
        mlp_bias=True,
    ),
    "olmo2": _tiny("Olmo2", _NORMS_BEHIND, pad_token_id=0),
    "olmo2_single_kv_head": _tiny(
        "Olmo2",
        _BIASES_OF_ATTENTION,
        pad_token_id=0,
        num_key_value_heads=1,
        attention_bias=True,
    ),
    "olmo3": _tiny(
        "Olmo3",
        _NORMS_BEHIND
        | {
            "window": keys(sliding_window=WINDOW + 1),
            "scaling": keys(rope_parameters={"full_attention": _ROPE, "sliding_attention": _ROPE}),
            "within": keys(rope_parameters={"full_attention": _YARN, "sliding_attention": _YARN}),
        },
        edge=WINDOW,
        pad_token_id=0,
        sliding_window=WINDOW,
        layer_types=_MIXED,
        rope_parameters={"full_attention": _YARN, "sliding_attention": _ROPE},
    ),
    "exaone4": _tiny(
        "Exaone4", _NORMS_BEHIND, sliding_window=None, layer_types=["full_attention"] * 4
    ),
    "exaone4_windows": _tiny(
        "Exaone4",
        {
            "window": keys(sliding_window=WINDOW + 1),
            "layers": keys(layer_types=["sliding_attention"] * 4),
        },
        edge=WINDOW,
        sliding_window=WINDOW,
        layer_types=_MIXED,
    ),
    "glm": _tiny(
        "Glm",
        {
            "qkv_bias": _BIASES["qkv_bias"],
            "part_of_heads": keys(rope_parameters=_ROPE | {"partial_rotary_factor": 0.75}),
            **_INTERLEAVED,
        },
        **_GLM,
    ),
    "glm4": _tiny(
        "Glm4",
        {
            "attention_norm": weights("post_self_attn_layernorm", 1.0),
            "mlp_norm": weights("post_attention_layernorm", 1.0),
            "down_norm": weights("post_mlp_layernorm", 1.0),
            **_INTERLEAVED,
        },
        **_GLM,
        attention_bias=False,
    ),
    "ernie": _tiny("Ernie4_5", _INTERLEAVED, head_dim=24),
    "ernie_biases": _tiny("Ernie4_5", _BIASES, head_dim=16, use_bias=True),
    "hunyuan": _tiny(
        "HunYuanDenseV1",
        {
            "query_norm": weights("query_layernorm", _grown),
            "norm_before": fields(qk_norm="head"),
            "alpha": keys(rope_parameters=_ROPE),
        },
        head_dim=24,
        rope_parameters=_ROPE | {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    ),
    "hunyuan_plain": _tiny(
        "HunYuanDenseV1", _BIASES_OF_ATTENTION, head_dim=16, attention_bias=True
    ),
    "arcee": _tiny("Arcee", {"activation": keys(hidden_act="relu")}),
    "arcee_biases": _tiny("Arcee", _BIASES, attention_bias=True, mlp_bias=True),
    "helium": _tiny("Helium", _INTERLEAVED, head_dim=16),
    "helium_biases": _tiny(
        "Helium",
        {name: _BIASES[name] for name in ("qkv_bias", "mlp_bias")},
        head_dim=16,
        attention_bias=True,
        mlp_bias=True,
    ),
    "nemotron": _tiny(
        "Nemotron",
        {
            "unit_offset": fields(unit_offset_norms=False),
            "norm_bias": weights(r"layernorm\.bias", 0.0),
            "activation": keys(hidden_act="relu"),
            "part_of_heads": keys(rope_parameters=_ROPE | {"partial_rotary_factor": 0.75}),
        },
        head_dim=24,
        rope_parameters=_HALF,
    ),
    "nemotron_biases": _tiny("Nemotron", _BIASES, head_dim=16, attention_bias=True, mlp_bias=True),
    "cohere": _tiny(
        "Cohere",
        {
            "logit_scale": keys(logit_scale=0.25),
            "norms": weights("input_layernorm", 1.0),
            **_INTERLEAVED,
        },
        logit_scale=1.5,
        tie_word_embeddings=True,
    ),
    "cohere_biases": _tiny("Cohere", _BIASES_OF_ATTENTION, logit_scale=1.0, attention_bias=True),
    "cohere2": _tiny(
        "Cohere2",
        {
            "window": keys(sliding_window=WINDOW + 1),
            "layers": keys(layer_types=["sliding_attention"] * 4),
            **_INTERLEAVED,
        },
        edge=WINDOW,
        logit_scale=1.5,
        sliding_window=WINDOW,
        layer_types=_MIXED,
    ),
    "starcoder2": _tiny(
        "Starcoder2",
        {
            "window": keys(sliding_window=WINDOW + 1),
            "attention_norm": weights("input_layernorm", 1.0),
            "mlp_norm": weights("post_attention_layernorm", 1.0),
            "down_bias": weights(r"c_proj\.bias", 0.0),
        },
        edge=WINDOW,
        sliding_window=WINDOW,
        tie_word_embeddings=True,
    ),
    "starcoder2_plain": _tiny("Starcoder2", use_bias=False, num_key_value_heads=4),
    "phi": _tiny(
        "Phi",
        {
            "head_bias": weights(r"lm_head\.bias", 0.0),
            "output_bias": weights(r"dense\.bias", 0.0),
            "parallel": fields(parallel=False),
            "part_of_heads": keys(rope_parameters=_ROPE | {"partial_rotary_factor": 0.75}),
        },
        rope_parameters=_HALF,
    ),
    "gpt_neox": _tiny(
        "GPTNeoX",
        {
            "parallel": keys(use_parallel_residual=False),
            "qkv_bias": weights(r"query_key_value\.bias", 0.0),
            "order": fields(fused_qkv="parts"),
            "mlp_norm": weights("post_attention_layernorm", 1.0),
        },
        num_key_value_heads=4,
        rope_parameters=_HALF,
    ),
    "gpt_neox_in_turn": _tiny(
        "GPTNeoX",
        num_key_value_heads=4,
        rope_parameters=_HALF,
        use_parallel_residual=False,
        attention_bias=False,
        tie_word_embeddings=True,
    ),
    "gpt2": TinyModel(
        architecture="GPT2LMHeadModel",
        config={
            "vocab_size": 211,
            "n_embd": 64,
            "n_head": 4,
            "n_layer": 4,
            "n_positions": LIMIT,
            "initializer_range": 0.2,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        spoilt={
            "positions": weights("wpe", 0.0),
            "activation": keys(activation_function="relu"),
            "qkv_bias": weights(r"c_attn\.bias", 0.0),
            "norm_bias": weights(r"ln_[12]\.bias", 0.0),
        },
    ),
}
