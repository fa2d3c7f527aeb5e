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
    WITH_OWN_CODE,
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
    "electra": PUBLISHED["cross-encoder/ms-marco-electra-base"],
    "albert": PUBLISHED["albert-base-v2"],
    "eurobert": PUBLISHED["EuroBERT/EuroBERT-210m"],
    "gte": WITH_OWN_CODE["Alibaba-NLP/gte-base-en-v1.5"],
    "deberta": PUBLISHED["mixedbread-ai/mxbai-rerank-base-v1"],
    "jina": WITH_OWN_CODE["jinaai/jina-embeddings-v2-base-en"],
    **PUBLISHED,
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], **SIZES},
    "qwen2_moe": {"architectures": ["Qwen2MoeForCausalLM"], **SIZES},
    "neox": {"architectures": ["GPTNeoXForCausalLM"], **SIZES},
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
    {"head_dim": 32},
    {"num_key_value_heads": 4},
]
OF_LLAMA: list[Refused] = [
    ("llama", {"is_causal": False}, "cannot generate"),
    ("llama", {"use_bidirectional_attention": True}, "use_bidirectional_attention true is not"),
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
    ("llama", {"rms_norm_eps": -1}, "Expected `float` >= 0.0 - at `$.family.norm_eps`"),
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
    ({"rope_theta": 0}, "Expected `float` > 1.0 - at `$.attention[0].rope.theta`"),
    ({"rope_type": "linear", "factor": -1}, "rope.scaling.factor`"),
    (YARN | {"factor": 0}, "rope.scaling.factor`"),
    (YARN | {"rope_theta": 1}, "rope.theta`"),
    (YARN | {"beta_slow": -1}, "rope.scaling.beta_slow`"),
    (LONGROPE | {"long_factor": [0.0] * 64}, "rope.scaling.long_factors[0]`"),
    (LLAMA3 | {"high_freq_factor": 1.0}, "low_freq_factor is not less than high_freq_factor"),
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
    ("nomic", {"head_dim": 32}, "head_dim 32 is not supported"),
    (BERTS[2], {"problem_type": "regression"}, "problem_type regression of several labels is not"),
    *(
        (name, {"layer_types": ["sliding_attention"] * 2}, "layer_types has 'sliding_attention'")
        for name in ("qwen2", "qwen2_moe")
    ),
]
OF_ENCODERS: list[Refused] = [
    ("electra", {"embedding_size": 0}, "embedding_size 0 is less than 1"),
    ("electra", {"embedding_size": "128"}, "embedding_size is not valid"),
    ("electra", {"odd": 3}, "odd 3 is not known"),
    ("albert", {"num_hidden_groups": 2}, "num_hidden_groups 2 is not supported"),
    ("albert", {"inner_group_num": 3}, "inner_group_num 3 is not supported"),
    ("albert", {"embedding_size": 1.5}, "embedding_size is not valid"),
    ("eurobert", {"mlp_bias": True}, "mlp_bias true is not supported"),
    ("eurobert", {"clf_pooling": "max"}, "clf_pooling 'max' is not supported (one of bos, mean"),
    ("eurobert", {"classifier_pooling": "mean"}, "clf_pooling late and classifier_pooling mean"),
    ("gte", {"pack_qkv": 1}, "pack_qkv is not valid"),
    ("gte", {"layer_norm_type": "rms_norm"}, 'layer_norm_type "rms_norm" is not supported'),
    ("gte", {"position_embedding_type": "absolute"}, 'position_embedding_type "absolute"'),
    ("gte", {"logn_attention_scale": True}, "logn_attention_scale true is not supported"),
    ("gte", {"rope_scaling": {"type": "yarn", "factor": 2}}, "rope_scaling.type 'yarn' is not"),
    ("gte", {"rope_scaling": {"type": "ntk"}}, "has no 'rope_scaling.factor'"),
    ("gte", {"rope_scaling": {"type": "ntk", "factor": 0}}, "rope_scaling.factor 0"),
    ("gte", {"rope_scaling": {"type": "ntk", "factor": 2, "mixed_b": 0.5}}, "mixed_b 0.5"),
    ("gte", {"rope_theta": float("nan")}, "rope_theta NaN is not a finite number"),
    ("jina", {"feed_forward_type": "original"}, "feed_forward_type 'original' is not supported"),
    ("jina", {"position_embedding_type": "absolute"}, "position_embedding_type 'absolute' is not"),
    ("jina", {"position_embedding_type": None}, "has no 'position_embedding_type'"),
    ("deberta", {"relative_attention": False}, "relative_attention false is not supported"),
    ("deberta", {"share_att_key": None}, "share_att_key false is not supported"),
    ("deberta", {"pos_att_type": "c2p"}, 'pos_att_type "c2p" is not supported (c2p with p2c)'),
    ("deberta", {"pos_att_type": None}, "pos_att_type null is not supported"),
    ("deberta", {"pos_att_type": [1]}, "pos_att_type is not valid"),
    ("deberta", {"norm_rel_ebd": "none"}, "norm_rel_ebd 'none' is not supported"),
    ("deberta", {"conv_kernel_size": 3}, "conv_kernel_size 3 is not supported"),
    ("deberta", {"position_buckets": 2}, "position_buckets 2 do not fit distances of 512 tokens"),
    ("deberta", {"max_relative_positions": 9}, "position_buckets 256 do not fit distances of 9"),
    ("deberta", {"pooler_hidden_size": 9}, "pooler_hidden_size 9 is not supported"),
    ("jina", {"emb_odd": 1}, "emb_odd 1 is not known"),
]
_GRANITE, _HUNYUAN = "ibm-granite/granite-3.3-8b-instruct", "tencent/Hunyuan-7B-Instruct"
_SMOL, _EXAONE = "HuggingFaceTB/SmolLM3-3B", "LGAI-EXAONE/EXAONE-4.0-32B"
_COMMAND, _COMMAND7 = "CohereLabs/c4ai-command-r-v01", "CohereLabs/c4ai-command-r7b-12-2024"
_GPT2 = "openai-community/gpt2"
OF_LATER_DECODERS: list[Refused] = [
    (_SMOL, {"no_rope_layers": [1] * 35}, "no_rope_layers has 35 entries for 36 layers"),
    (_SMOL, {"no_rope_layers": ["no"]}, "no_rope_layers is not valid"),
    (_SMOL, {"no_rope_layer_interval": 0}, "no_rope_layer_interval 0 is less than 1"),
    (_GRANITE, {"residual_multiplier": 0}, "residual_multiplier 0 is not more than 0"),
    (_GRANITE, {"logits_scaling": -1.0}, "logits_scaling -1 is not more than 0"),
    (_GRANITE, {"attention_multiplier": float("nan")}, "attention_multiplier NaN is not a finite"),
    (_GRANITE, {"embedding_multiplier": "12"}, "embedding_multiplier is not valid"),
    (_GRANITE, {"logit_scale": 0.1}, "logit_scale 0.1 is not known"),
    (_EXAONE, {"layer_types": None}, "sliding_window_pattern is not valid"),
    (_EXAONE, {"layer_types": ["odd"] * 64}, "layer_types has 'odd', which is not supported"),
    (
        "ByteDance-Seed/Seed-OSS-36B-Instruct",
        {"attention_out_bias": 1},
        "attention_out_bias is not",
    ),
    ("allenai/Olmo-3-1025-7B", {"clip_qkv": 8.0}, "clip_qkv 8.0 is not known"),
    ("allenai/Olmo-3-1025-7B", {"sliding_window": 0}, "sliding_window 0 is less than 1"),
    ("zai-org/GLM-4-9B-0414", {"partial_rotary_factor": 0.26}, "33 of 128 dimensions of a head"),
    (
        "zai-org/GLM-4-9B-0414",
        {"partial_rotary_factor": "half"},
        "partial_rotary_factor is not valid",
    ),
    ("baidu/ERNIE-4.5-0.3B-PT", {"use_bias": "no"}, "use_bias is not valid"),
    (_HUNYUAN, {"use_cla": True}, "use_cla true is not supported"),
    (_HUNYUAN, {"use_qk_norm": False}, "use_qk_norm false is not supported"),
    (
        _HUNYUAN,
        {"rope_scaling": {"type": "linear", "alpha": 2.0}},
        'type "linear" is not supported',
    ),
    (_HUNYUAN, {"rope_scaling": {"type": "dynamic", "alpha": 0}}, "rope alpha 0 is not supported"),
    (_HUNYUAN, {"rope_scaling": {"type": "dynamic", "alpha": 1e300}}, "rope alpha 1e+300 is not"),
    ("arcee-ai/AFM-4.5B", {"gated": True}, "gated true is not known"),
    ("kyutai/helium-1-2b", {"mlp_bias": 3}, "mlp_bias is not valid"),
    ("nvidia/Minitron-4B-Base", {"norm_eps": "small"}, "norm_eps is not valid"),
    ("nvidia/Minitron-4B-Base", {"rope_percent": 0.25}, "rope_percent 0.25 is not supported"),
    (_COMMAND, {"use_qk_norm": True}, "use_qk_norm true is not supported"),
    (_COMMAND, {"logit_scale": "1"}, "logit_scale is not valid"),
    (_COMMAND7, {"use_parallel_block": False}, "use_parallel_block false is not supported"),
    (_COMMAND7, {"sliding_window_pattern": 0}, "sliding_window_pattern 0 is less than 1"),
    ("bigcode/starcoder2-3b", {"norm_type": "rms"}, 'norm_type "rms" is not supported'),
    ("bigcode/starcoder2-3b", {"use_bias": 1}, "use_bias is not valid"),
    ("microsoft/phi-2", {"qk_layernorm": True}, "qk_layernorm true is not supported"),
    ("EleutherAI/pythia-160m", {"rotary_pct": 0.27}, "17 of 64"),
    ("neox", {"rope_theta": 500.0}, "rotary_emb_base 10000.0 and rope_theta 500.0 differ"),
    ("EleutherAI/pythia-160m", {"use_parallel_residual": "no"}, "use_parallel_residual is not"),
    (_GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx true is"),
    (_GPT2, {"n_inner": 0}, "n_inner 0 is less than 1"),
    (_GPT2, {"n_embd": 770}, "hidden_size 770 is not divisible by 12 attention heads"),
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
_GEMMA4 = "google/gemma-4-31B-it"
_GEMMA4_TYPES = PUBLISHED[_GEMMA4]["text_config"]["layer_types"]
OF_GEMMA4: list[Keys] = [
    {"odd": 3},
    {"enable_moe_block": True},
    {"use_bidirectional_attention": "all"},
    {"global_head_dim": 0},
    {"hidden_size_per_layer_input": -1},
    {"num_kv_shared_layers": 60},
    {"num_kv_shared_layers": 55},
    {"final_logit_softcapping": 0},
    {"per_layer_config": {"60": {"head_dim": 512}}},
    {"per_layer_config": {"5": {"head_dims": 512}}},
    {"per_layer_config": {"5": {"head_dim": 0}}},
    {"per_layer_config": {"53": {"head_dim": 512}}, "num_kv_shared_layers": 2},
    {"rope_parameters": {"full_attention": {"rope_type": "proportional", "odd": 1}}},
]
"""Keys of Gemma 4, the first of which is at fault."""
OF_WRAPPERS: list[Refused] = [
    *((_GEMMA4, changes, next(iter(changes))) for changes in OF_GEMMA4),
    (_GEMMA4, {"layer_types": _GEMMA4_TYPES[:-1]}, "layer_types has 59 entries for 60 layers"),
    (_GEMMA4, {"num_global_key_value_heads": 5}, "not divisible by 5 key/value heads"),
    (
        _GEMMA4,
        {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 9},
        "vocab_size_per_layer_input 9 is less than vocab_size 262144",
    ),
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
    *(
        (name, {"use_sliding_window": True}, "text_config.use_sliding_window true is not supported")
        for name in (_QWEN3, "Qwen/Qwen3-VL-30B-A3B-Instruct")
    ),
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
    yield from (*OF_LLAMA, *OF_PHI, *OF_NOMIC, *OF_ENCODERS, *OF_LATER_DECODERS)
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
