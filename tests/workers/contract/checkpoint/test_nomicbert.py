"""NomicBERT's two forms of config.json: the keys of GPT-2, and those of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers.contract.checkpoint.test_published_forms import PUBLISHED
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfig, ModelConfigError

OLD = PUBLISHED["nomic-ai/nomic-embed-text-v1.5"]
NEW = {
    "architectures": ["NomicBertModel"],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 2048,
    "model_type": "nomic_bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
    "type_vocab_size": 2,
    "vocab_size": 30528,
}


def read(folder: Path, config: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return read_model_config(folder)


def test_all_forms_differ_in_length_alone(tmp_path: Path) -> None:
    """transformers declares the length of the training; the model takes more."""
    old, new = read(tmp_path, OLD), read(tmp_path, NEW)
    both = read(tmp_path, OLD | NEW)
    assert (old.max_model_len, new.max_model_len, both.max_model_len) == (8192, 2048, 8192)
    assert old == both
    assert (old.attention, old.family, old.head_dim) == (new.attention, new.family, new.head_dim)


def test_scaled_positions_end_with_those_of_the_training(tmp_path: Path) -> None:
    config = read(tmp_path, OLD | {"rotary_scaling_factor": 2.0})
    assert config.max_model_len == 2048
    assert config.attention == read(tmp_path, OLD).attention


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"moe_every_n_layers": 2, "num_experts": 8, "moe_top_k": 2}, "num_experts 8 "),
        ({"hidden_size": 512}, "n_embd 768 and hidden_size 512 differ"),
        ({"activation_function": "gelu"}, "'gelu' is not supported (one of swiglu, geglu)"),
        ({"prenorm": True}, "prenorm true"),
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction 0.5"),
        ({"qkv_proj_bias": True}, "qkv_proj_bias true"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelConfigError) as error:
        read(tmp_path, OLD | change)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
