"""A tiny model of every family of decoders, and what each of its features is spoilt by."""

from typing import Any

from tests.workers.checkpoints import LLAMA
from tests.workers.contract.checkpoint.config_files import LLAMA3, YARN
from tests.workers.models.tiny_models import Spoilt, TinyModel, fields, keys, weights

LIMIT = 64
_SIZES = LLAMA | {"max_position_embeddings": LIMIT}
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 3.0}
_LLAMA3 = LLAMA3 | {"rope_theta": 10_000.0, "original_max_position_embeddings": 32}
_PART = {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
_YARN = YARN | {"rope_theta": 10_000.0, "original_max_position_embeddings": 16}
_ROPE = {"rope_type": "default", "rope_theta": 20_000.0}
_ROPE_FAR = {"rope_type": "default", "rope_theta": 1_000_000.0}


WINDOW = 24
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0],
    "partial_rotary_factor": 0.75,
    "attention_factor": 1.2,
}
_GEMMA: dict[str, Any] = {
    "head_dim": 24,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "query_pre_attn_scalar": 20,
    "tie_word_embeddings": True,
}
_GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
_GEMMA_SPOILT = {
    "window": keys(sliding_window=WINDOW + 1),
    "layers": keys(layer_types=["sliding_attention"] * 4),
    "scale": keys(query_pre_attn_scalar=24),
    "attention_norm": weights("post_attention_layernorm", 0.0),
    "mlp_norm": weights("pre_feedforward_layernorm", 0.0),
    "down_norm": weights("post_feedforward_layernorm", 0.0),
    "activation": keys(hidden_activation="silu"),
    "unit_offset": fields(unit_offset_norms=False),
    "embedding_scale": fields(embedding_scale=1.0),
}
_MINISTRAL3_ROPE = _YARN | {"mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.5}
_MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
_QWEN_VISION = {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 64}
_PIXTRAL = {
    "model_type": "pixtral",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 8,
    "image_size": 8,
    "patch_size": 4,
}
_BIASES_SPOILT = {
    "qkv_bias": weights(r"[qkv]_proj\.bias", 0.0),
    "output_bias": weights(r"o_proj\.bias", 0.0),
}


def _tiny(
    architecture: str, spoilt: dict[str, Spoilt] | None = None, *, edge: int = 0, **changes: Any
) -> TinyModel:
    return TinyModel(
        architecture=architecture,
        config=_SIZES | changes,
        edges=(edge,) if edge else (),
        spoilt=spoilt or {},
    )


def _llama(spoilt: dict[str, Spoilt] | None = None, **changes: Any) -> TinyModel:
    return _tiny("LlamaForCausalLM", spoilt, **changes)


def _wrapped(
    architecture: str,
    text: dict[str, Any],
    vision: dict[str, Any],
    spoilt: dict[str, Spoilt],
    **spoilt_text: Any,
) -> TinyModel:
    """A language model beside a vision tower. `spoilt_text` are wrong keys of the former."""
    text = _SIZES | text
    spoilt_keys = {key: keys(text_config=text | {key: wrong}) for key, wrong in spoilt_text.items()}
    return TinyModel(
        architecture=architecture,
        config={"text_config": text, "vision_config": vision, "tie_word_embeddings": False},
        spoilt=spoilt | spoilt_keys,
    )


DECODERS: dict[str, TinyModel] = {
    "llama": _llama(
        {
            "positions": keys(rope_parameters=_ROPE),
            "norms": weights("input_layernorm", 1.0),
            "last_norm": weights(r"model\.norm", 1.0),
        }
    ),
    "llama_ungrouped": _llama(num_key_value_heads=4),
    "llama_single_kv_head": _llama(num_key_value_heads=1),
    "llama_wide_heads": _llama(head_dim=24),
    "llama_tied": _llama(tie_word_embeddings=True),
    "llama_biases": _llama(
        {**_BIASES_SPOILT, "mlp_bias": weights(r"mlp.*bias", 0.0)},
        attention_bias=True,
        mlp_bias=True,
    ),
    "llama_rope_llama3": _llama(
        {"scaling": keys(rope_parameters=_LLAMA3 | {"factor": 4.0})}, rope_parameters=_LLAMA3
    ),
    "llama_rope_linear": _llama(
        {"scaling": keys(rope_parameters=_LINEAR | {"factor": 2.0})}, rope_parameters=_LINEAR
    ),
    "llama_rope_yarn": _llama(
        {
            "scaling": keys(rope_parameters=_YARN | {"factor": 2.0, "attention_factor": 1.13863}),
            "attention_factor": keys(rope_parameters=_YARN | {"attention_factor": 1.0}),
        },
        rope_parameters=_YARN,
    ),
    "mistral": _tiny(
        "MistralForCausalLM",
        {"window": keys(sliding_window=WINDOW + 1), "no_window": keys(sliding_window=None)},
        edge=WINDOW,
        sliding_window=WINDOW,
    ),
    "qwen2": _tiny("Qwen2ForCausalLM", {"qkv_bias": weights(r"[qkv]_proj\.bias", 0.0)}),
    "qwen2_windows": _tiny(
        "Qwen2ForCausalLM",
        {
            "window": keys(sliding_window=WINDOW - 1),
            "layers": keys(layer_types=["full_attention"] * 4),
        },
        edge=WINDOW,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=2,
    ),
    "qwen3": _tiny(
        "Qwen3ForCausalLM",
        {"query_norm": weights(r"q_norm", 1.0), "key_norm": weights(r"k_norm", 1.0)},
        head_dim=24,
    ),
    "qwen3_tied_with_biases": _tiny(
        "Qwen3ForCausalLM",
        {"output_bias": weights(r"o_proj\.bias", 0.0)},
        head_dim=24,
        tie_word_embeddings=True,
        attention_bias=True,
    ),
    "phi3": _tiny(
        "Phi3ForCausalLM",
        {
            "window": keys(sliding_window=WINDOW + 1),
            "part_of_heads": keys(rope_parameters=_ROPE | _PART),
        },
        edge=WINDOW,
        pad_token_id=0,
        sliding_window=WINDOW,
    ),
    "phi3_longrope_short": _tiny(
        "Phi3ForCausalLM",
        {
            "factors": keys(original_max_position_embeddings=LIMIT - 1),
            "attention_factor": keys(rope_parameters=_LONGROPE | {"attention_factor": 1.0}),
        },
        pad_token_id=0,
        rope_parameters=_LONGROPE,
        original_max_position_embeddings=LIMIT,
        tie_word_embeddings=True,
    ),
    # transformers takes the long factors for texts longer than the original length: here from two
    # tokens on, and one alone is at position 0, which is not rotated.
    "phi3_longrope_long": _tiny(
        "Phi3ForCausalLM",
        {"factors": keys(original_max_position_embeddings=LIMIT)},
        pad_token_id=0,
        rope_parameters=_LONGROPE,
        original_max_position_embeddings=1,
        num_key_value_heads=4,
    ),
    "gemma": _tiny(
        "GemmaForCausalLM",
        {
            "activation": keys(hidden_act="silu"),
            "unit_offset": fields(unit_offset_norms=False),
            "embedding_scale": fields(embedding_scale=1.0),
        },
        head_dim=24,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        hidden_act="gelu_pytorch_tanh",
    ),
    "gemma_biases": _tiny("GemmaForCausalLM", _BIASES_SPOILT, head_dim=16, attention_bias=True),
    "gemma2": _tiny(
        "Gemma2ForCausalLM",
        _GEMMA_SPOILT
        | {
            "softcap": keys(attn_logit_softcapping=None),
            "logit_softcap": keys(final_logit_softcapping=None),
        },
        edge=WINDOW,
        **_GEMMA,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=6.0,
    ),
    "gemma3": _tiny(
        "Gemma3ForCausalLM",
        _GEMMA_SPOILT
        | {
            "query_norm": weights(r"q_norm", 0.0),
            "key_norm": weights(r"k_norm", 0.0),
            "scaling": keys(rope_parameters=_GEMMA_ROPES | {"full_attention": _ROPE_FAR}),
            "local_theta": keys(rope_parameters=_GEMMA_ROPES | {"sliding_attention": _ROPE_FAR}),
        },
        edge=WINDOW,
        **_GEMMA,
        rope_parameters=_GEMMA_ROPES,
    ),
    "ministral3": _tiny(
        "Ministral3ForCausalLM",
        {
            "window": keys(sliding_window=WINDOW + 1),
            "query_growth": keys(rope_parameters=_MINISTRAL3_ROPE | {"llama_4_scaling_beta": 0.4}),
            "mscale": keys(rope_parameters=_MINISTRAL3_ROPE | {"mscale": 0.5}),
        },
        edge=WINDOW,
        head_dim=24,
        sliding_window=WINDOW,
        rope_parameters=_MINISTRAL3_ROPE,
    ),
    "mistral3": _wrapped(
        "Mistral3ForConditionalGeneration",
        {"model_type": "mistral", "sliding_window": None, "head_dim": 24},
        _PIXTRAL,
        {"norms": weights("input_layernorm", 1.0)},
        sliding_window=WINDOW,
    ),
    "mistral3_with_ministral3": _wrapped(
        "Mistral3ForConditionalGeneration",
        {"model_type": "ministral3", "head_dim": 24, "rope_parameters": _MINISTRAL3_ROPE},
        _PIXTRAL,
        {},
        rope_parameters=_MINISTRAL3_ROPE | {"llama_4_scaling_beta": 0.4},
    ),
    "qwen2_vl": _wrapped(
        "Qwen2VLForConditionalGeneration",
        {"rope_parameters": _MROPE},
        _QWEN_VISION | {"embed_dim": 16, "hidden_size": 64},
        {"qkv_bias": weights(r"[qkv]_proj\.bias", 0.0)},
        rope_parameters=_MROPE | {"rope_theta": 20_000.0},
    ),
    "qwen2_5_vl": _wrapped(
        "Qwen2_5_VLForConditionalGeneration",
        {"rope_parameters": _YARN | {"mrope_section": [2, 3, 3]}},
        _QWEN_VISION | {"intermediate_size": 16},
        {"qkv_bias": weights(r"[qkv]_proj\.bias", 0.0)},
        rope_parameters=_MROPE,
    ),
    "qwen3_vl": _wrapped(
        "Qwen3VLForConditionalGeneration",
        {
            "head_dim": 32,
            "rope_parameters": _MROPE | {"mrope_section": [6, 5, 5], "mrope_interleaved": True},
        },
        _QWEN_VISION | {"intermediate_size": 16, "num_position_embeddings": 16},
        {
            "query_norm": weights(r"layers.*q_norm", 1.0),
            "key_norm": weights(r"layers.*k_norm", 1.0),
        },
        rope_parameters=_MROPE | {"rope_theta": 20_000.0},
    ),
}
