"""Tiny models of Gemma 4's forms, and what each of their features is spoilt by."""

from typing import Any

from tests.workers.models.decoders import LIMIT, WINDOW
from tests.workers.models.tiny_models import TinyModel, fields, keys, weights

_SLIDING, _FULL = "sliding_attention", "full_attention"
_ROPES: dict[str, Any] = {
    _FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
    _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
}
_TEXT: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 24,
    "sliding_window": WINDOW,
    "max_position_embeddings": LIMIT,
    "initializer_range": 0.15,
    "rope_parameters": _ROPES,
}
_DENSE = _TEXT | {
    "num_hidden_layers": 5,
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _FULL],
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 9.0,
}
_EFFECTIVE = _TEXT | {
    "num_hidden_layers": 6,
    "layer_types": [_SLIDING, _SLIDING, _SLIDING, _FULL, _SLIDING, _FULL],
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 199,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "patch_size": 4,
    "position_embedding_size": 16,
}
_WRONG_PART = _ROPES | {_FULL: _ROPES[_FULL] | {"partial_rotary_factor": 0.25}}
_SPOILT = {
    "window": keys(sliding_window=WINDOW + 1),
    "part": keys(rope_parameters=_WRONG_PART),
    "pairs": keys(
        rope_parameters=_ROPES | {_FULL: {"rope_type": "default", "rope_theta": 1_000_000.0}}
    ),
    "value_norm": fields(value_norm=False),
    "scalar": weights(r"layers\.1\.layer_scalar", 1.5),
    "query_norm": weights("q_norm", 0.0),
    "output_norm": weights("post_feedforward_layernorm", 0.0),
}
GEMMA4_DECODERS: dict[str, TinyModel] = {
    "gemma4": TinyModel(
        architecture="Gemma4ForCausalLM",
        config=_DENSE,
        edges=(WINDOW,),
        spoilt=_SPOILT | {"logit_softcap": keys(final_logit_softcapping=None)},
    ),
    "gemma4_with_layer_inputs": TinyModel(
        architecture="Gemma4ForCausalLM",
        config=_EFFECTIVE,
        edges=(WINDOW,),
        spoilt=_SPOILT
        | {
            "inputs": weights("embed_tokens_per_layer", 0.0),
            "projection": weights("per_layer_model_projection", 0.0),
            "projection_norm": weights("per_layer_projection_norm", 0.0),
            "gate": weights(r"layers\.2\.per_layer_input_gate", 0.0),
            "input_norm": weights("post_per_layer_input_norm", 0.0),
        },
    ),
    # Two groups of layers that see everything, with heads of two sizes.
    "gemma4_without_windows": TinyModel(
        architecture="Gemma4ForCausalLM", config=_DENSE | {"sliding_window": LIMIT}
    ),
    "gemma4_beside_vision": TinyModel(
        architecture="Gemma4ForConditionalGeneration",
        config={"text_config": _EFFECTIVE, "vision_config": _VISION, "audio_config": None},
    ),
    "gemma4_unified": TinyModel(
        architecture="Gemma4UnifiedForCausalLM",
        config={key: value for key, value in _DENSE.items() if "per_layer" not in key}
        | {"attention_bias": True, "num_kv_shared_layers": 1},
        edges=(WINDOW,),
        spoilt={"qkv_bias": weights(r"[qkv]_proj\.bias", 0.0)},
    ),
}
