"""Configurations that are refused, each in a line that names the key."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.contract.checkpoint.config_files import (
    BERTS,
    FACTORS,
    LLAMA3,
    LONGROPE,
    PUBLISHED,
    SIZES,
    YARN,
    refusal,
    written,
)

Keys = dict[str, Any]
Refused = tuple[str, Keys, str]
"""A base, other keys, and a part of the message."""

TEXT = {"hidden_size": 32, "num_hidden_layers": 6}
"""The `text_config` of the wrapper."""
BASES: dict[str, Keys] = {
    "llama": written(),
    "small": written(**SIZES, head_dim=None) | {"num_key_value_heads": None},
    "phi": PUBLISHED["microsoft/Phi-3.5-mini-instruct"],
    "nomic": PUBLISHED["nomic-ai/nomic-embed-text-v1.5"],
    "wrapper": {"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}},
    **{name: written(name) for name in BERTS},
    **PUBLISHED,
}

OF_ANY_MODEL: Keys = {
    "compression_config": {"format": "int-quantized"},
    "quantization": {"group_size": 64, "bits": 4},
    "per_layer_config": {"3": {"intermediate_size": 8}},
    "is_encoder_decoder": True,
    "pruned_heads": {"0": [1]},
    "sliding_window": 512,
    "attention_chunk_size": 512,
    "layer_types": ["full_attention", "sliding_attention"],
}
OF_BERT: list[Keys] = [
    {"position_embedding_type": "relative_key"},
    {"position_embedding_type": "relative_key_query"},
    {"position_embedding_type": "rotary"},
    {"is_decoder": True},
    {"add_cross_attention": True},
]
OF_LLAMA: list[Refused] = [
    ("llama", {"is_causal": False}, "cannot generate"),
    ("llama", {"use_bidirectional_attention": True}, "cannot generate"),
    ("llama", {"is_causal": "no"}, "is_causal"),
    (
        "llama",
        {"architectures": ["LlamaForSequenceClassification"], "is_causal": False},
        "cannot classify here",
    ),
    ("llama", {"architectures": ["LlamaBidirectionalModel"], "pooling": "cls"}, 'pooling "cls" is'),
    ("llama", {"architectures": ["LlamaBidirectionalModel"], "odd": 1}, "odd 1 is not known"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor "),
    ("llama", {"logit_scale": 0.1}, "logit_scale "),
    ("llama", {"llama_4_scaling": {"beta": 0.1}}, "llama_4_scaling "),
    ("small", {"num_attention_heads": 5}, "hidden_size 32 is not divisible by 5 attention heads"),
    (
        "small",
        {"num_key_value_heads": 3},
        "2 attention heads are not divisible by 3 key/value heads",
    ),
    ("small", {"num_hidden_layers": 0}, "num_hidden_layers 0 is less than 1"),
    ("small", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
    (
        "small",
        {"layer_types": ["odd", "even"]},
        "layer_types has 'odd', which is not supported here",
    ),
]
OF_ROPE: list[tuple[Keys, str]] = [
    ({"rope_type": "proportional"}, "rope type 'proportional' is not supported"),
    ({"full_attention": {"rope_type": "default"}}, "rope_parameters.full_attention "),
    (LLAMA3 | {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    (YARN | {"short_factor": FACTORS}, "rope_parameters.short_factor "),
    (LONGROPE | {"long_factor": [1.0] * 63}, "63 factors do not fit 64 pairs"),
]
NEEDED_OF_ROPE = [
    *((LLAMA3, key) for key in ("factor", "low_freq_factor", "high_freq_factor")),
    (YARN, "factor"),
    *((LONGROPE, key) for key in ("short_factor", "long_factor")),
]
OF_PHI: list[Refused] = [
    ("phi", {"attention_bias": True}, "attention_bias true is not supported"),
    ("phi", {"full_attn_mod": 2}, "full_attn_mod 2 is not supported"),
    ("phi", {"partial_rotary_factor": 0.7}, "67 of 96 dimensions of a head cannot be rotated"),
    ("phi", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope type 'linear' is not"),
    ("phi", {"rope_scaling": LONGROPE | {"type": "su"}}, "64 factors do not fit 48 pairs"),
]
OF_NOMIC: list[Refused] = [
    ("nomic", {"moe_every_n_layers": 2, "num_experts": 8, "moe_top_k": 2}, "num_experts 8 "),
    ("nomic", {"hidden_size": 512}, "n_embd 768 and hidden_size 512 differ"),
    ("nomic", {"activation_function": "gelu"}, "'gelu' is not supported (one of swiglu, geglu)"),
    ("nomic", {"prenorm": True}, "prenorm true"),
    ("nomic", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction 0.5"),
    ("nomic", {"qkv_proj_bias": True}, "qkv_proj_bias true"),
]
OF_A_WRAPPED_GEMMA: list[tuple[Keys, str]] = [
    ({"odd": 3}, "text_config.odd 3 is not known"),
    ({"sliding_window": 0}, "text_config.sliding_window 0 is less than 1"),
    ({"sliding_window_pattern": 0}, "sliding_window_pattern 0 is less than"),
    ({"layer_types": []}, "layer_types has 0 entries for 6 layers"),
    ({"attn_logit_softcapping": 5.0}, "attn_logit_softcapping 5.0 is not"),
    ({"final_logit_softcapping": 0}, "final_logit_softcapping 0 is not more"),
    ({"use_bidirectional_attention": True}, "cannot generate"),
]
_QWEN2_5, _QWEN3 = "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-4B-Instruct"
_DEVSTRAL = "mistralai/Devstral-Small-2-24B-Instruct-2512"
_ROPE = PUBLISHED[_DEVSTRAL]["text_config"]["rope_parameters"]
OF_WRAPPERS: list[Refused] = [
    (_QWEN2_5, {"odd": 3}, "odd 3 is not known"),
    (_QWEN2_5, {"hidden_size": 3586}, "hidden_size 3586 is not divisible by 28 attention heads"),
    (
        _QWEN2_5,
        {"rope_scaling": {"type": "mrope", "mrope_section": 3}},
        "rope_scaling.mrope_section",
    ),
    (_QWEN3, {"odd": 3}, "text_config.odd 3 is not known"),
    (_QWEN3, {"num_hidden_layers": 0}, "text_config.num_hidden_layers 0 is less than 1"),
    (_QWEN3, {"rope_scaling": {"mrope_interleaved": 1}}, "rope_scaling.mrope_interleaved"),
    (_DEVSTRAL, {"model_type": "mistral4"}, "'mistral4' is not supported (one of mistral, minist"),
    (_DEVSTRAL, {"sliding_window": 0}, "text_config.sliding_window 0 is less than 1"),
    *(
        (_DEVSTRAL, {"rope_parameters": _ROPE | wrong}, f"rope_parameters.{key}")
        for wrong in (
            {"llama_4_scaling_beta": "0.1"},
            {"llama_4_scaling_beta": float("nan")},
            {"original_max_position_embeddings": 0},
            {"mscale": [1]},
            {"odd": 1},
        )
        for key in wrong
    ),
]


def refused() -> Iterator[Refused]:
    for base in ("llama", *BERTS):
        for key, value in OF_ANY_MODEL.items():
            yield base, {key: value}, f"{key} "
        for method in ("gptq", "awq"):
            named = f"quantization_config with the method {method!r} is not supported"
            yield base, {"quantization_config": {"quant_method": method, "bits": 4}}, named
    for base in BERTS:
        for own in OF_BERT:
            ((key, value),) = own.items()
            yield base, own, f"{key} {json.dumps(value)} is not supported"
    yield from (*OF_LLAMA, *OF_PHI, *OF_NOMIC)
    for scaling, named in OF_ROPE:
        yield "llama", {"rope_parameters": scaling}, named
    for scaling, missing in NEEDED_OF_ROPE:
        others = {key: value for key, value in scaling.items() if key != missing}
        yield "llama", {"rope_scaling": others}, f" has no 'rope_scaling.{missing}'"
    for own, named in OF_A_WRAPPED_GEMMA:
        yield "wrapper", {"text_config": TEXT | own}, named
    yield "wrapper", {"tie_word_embeddings": "no"}, "tie_word_embeddings"
    for name, own, named in OF_WRAPPERS:
        wrapper = PUBLISHED[name]
        text = wrapper.get("text_config")
        yield name, own if text is None else {"text_config": text | own}, named
    yield "Qwen/Qwen3-VL-4B-Instruct", {"image_size": 5}, "image_size 5 is not known"
    yield "Qwen/Qwen3-VL-4B-Instruct", {"text_config": [1]}, "text_config"
    yield "wrapper", {"audio_config": {}, "text_config": TEXT}, "audio_config {} is not known"


@pytest.mark.parametrize(("base", "changes", "named"), [*refused()])
def test_a_configuration_is_refused_by_the_key(
    tmp_path: Path, base: str, changes: Keys, named: str
) -> None:
    assert named in refusal(tmp_path, BASES[base] | changes)
