"""Decoders that transformers has under another name, whose checkpoints have names of their own."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.equivalence import check_way
from tests.workers.inline_engine import Way
from tests.workers.models.later_decoders import LIMIT
from tests.workers.models.test_decoders import taught
from tests.workers.models.tiny_models import TinyModel, TinyModels

Tensors = dict[str, torch.Tensor]
SIZES: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": LIMIT,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}
INTERNLM2 = {
    r"embed_tokens": "tok_embeddings",
    r"self_attn\.o_proj": "attention.wo",
    r"input_layernorm": "attention_norm",
    r"post_attention_layernorm": "ffn_norm",
    r"mlp\.gate_proj": "feed_forward.w1",
    r"mlp\.down_proj": "feed_forward.w2",
    r"mlp\.up_proj": "feed_forward.w3",
    r"lm_head": "output",
}


def internlm2(llama: Tensors) -> Tensors:
    """Its names; each KV head's queries, key and values behind one another."""
    named = {}
    for name, tensor in llama.items():
        if (layer := re.match(r"(model\.layers\.\d+\.)self_attn\.q_proj\.(\w+)", name)) is None:
            own = name
            for pattern, replacement in INTERNLM2.items():
                own = re.sub(pattern, replacement, own)
            if not re.search(r"self_attn\.[kv]_proj", name):
                named[own] = tensor
            continue
        start, kind = layer.groups()
        parts = [llama[f"{start}self_attn.{part}_proj.{kind}"] for part in "qkv"]
        grouped = [part.unflatten(0, (2, -1)) for part in parts]
        named[f"{start}attention.wqkv.{kind}"] = torch.cat(grouped, dim=1).flatten(0, 1)
    return named


def baichuan(llama: Tensors) -> Tensors:
    """With fused queries, keys and values."""
    fused = {}
    for name, tensor in llama.items():
        if "q_proj" in name:
            parts = [llama[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            fused[name.replace("q_proj", "W_pack")] = torch.cat(parts)
        elif not re.search(r"[kv]_proj", name):
            fused[name] = tensor
    return fused


def baichuan2(llama: Tensors) -> Tensors:
    """With rows of the LM head of any length."""
    head = llama["lm_head.weight"]
    lengths = torch.linspace(0.5, 3.0, len(head)).unsqueeze(1)
    return baichuan(llama) | {"lm_head.weight": head * lengths}


def mimo(qwen2: Tensors) -> Tensors:
    """With a layer that predicts a further token."""
    return qwen2 | {"model.mtp_layers.0.input_proj.weight": torch.zeros(64, 128)}


_BAICHUAN = {"model_type": "baichuan", "model_max_length": LIMIT, "z_loss_weight": 0}
FORMS: dict[str, tuple[TinyModel, dict[str, Any], Callable[[Tensors], Tensors]]] = {
    "internlm2": (
        TinyModel(architecture="LlamaForCausalLM", config=SIZES),
        {
            "architectures": ["InternLM2ForCausalLM"],
            "model_type": "internlm2",
            "attn_implementation": "eager",
            "auto_map": {"AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"},
            "bias": False,
            "rope_theta": 10_000,
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
        },
        internlm2,
    ),
    "internlm2_biases": (
        TinyModel(architecture="LlamaForCausalLM", config=SIZES | {"attention_bias": True}),
        {"architectures": ["InternLM2ForCausalLM"], "bias": True},
        internlm2,
    ),
    "baichuan": (
        TinyModel(architecture="LlamaForCausalLM", config=SIZES | {"num_key_value_heads": 8}),
        {"architectures": ["BaiChuanForCausalLM"], "num_key_value_heads": None, **_BAICHUAN},
        baichuan,
    ),
    "mimo": (
        TinyModel(architecture="Qwen2ForCausalLM", config=SIZES),
        {
            "architectures": ["MiMoForCausalLM"],
            "model_type": "mimo",
            "attention_bias": True,
            "head_dim": 8,
            "num_nextn_predict_layers": 1,
            "rope_theta": 10_000,
            "use_sliding_window": False,
        },
        mimo,
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_another_name_is_the_same_model(tmp_path: Path, name: str) -> None:
    tiny, own, convert = FORMS[name]
    lesson = taught(TinyModels(tmp_path), tiny)
    file = lesson.folder / "model.safetensors"
    save_file({key: value.contiguous() for key, value in convert(load_file(file)).items()}, file)
    (lesson.folder / "config.json").write_text(json.dumps(SIZES | own))
    check_way(lesson, Way())
    check_way(lesson, Way(stages=2, depth=3, max_step_tokens=40))


def test_rows_of_baichuan_2s_lm_head_are_scaled(tmp_path: Path) -> None:
    models = TinyModels(tmp_path)
    tiny = TinyModel(architecture="LlamaForCausalLM", config=SIZES | {"num_key_value_heads": 8})
    folder, model = models(tiny)
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.nn.functional.normalize(model.lm_head.weight))
        model.model.norm.weight.mul_(4)
    model.save_pretrained(folder)
    lesson, file = taught(models, tiny), folder / "model.safetensors"
    save_file({key: value.contiguous() for key, value in baichuan2(load_file(file)).items()}, file)
    own = {"architectures": ["BaichuanForCausalLM"], "num_key_value_heads": None, **_BAICHUAN}
    (folder / "config.json").write_text(json.dumps(SIZES | own))
    check_way(lesson, Way())
