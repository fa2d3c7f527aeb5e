"""config.json as published checkpoints have it and as transformers 5 writes it are one record."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers import AutoConfig

from workers.contract.attention_kind import RopeConfig
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfig

_ENCODER: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "position_embedding_type": "absolute",
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "sentence-transformers/LaBSE": _ENCODER
    | {
        "architectures": ["BertModel"],
        "directionality": "bidi",
        "gradient_checkpointing": False,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "bert",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pad_token_id": 0,
        "pooler_fc_size": 768,
        "pooler_num_attention_heads": 12,
        "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform",
        "type_vocab_size": 2,
        "vocab_size": 501153,
    },
    "xlm-roberta-base": _ENCODER
    | {
        "architectures": ["XLMRobertaForMaskedLM"],
        "bos_token_id": 0,
        "eos_token_id": 2,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 514,
        "model_type": "xlm-roberta",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "output_past": True,
        "pad_token_id": 1,
        "transformers_version": "4.17.0.dev0",
        "type_vocab_size": 1,
        "use_cache": True,
        "vocab_size": 250002,
    },
    "BAAI/bge-reranker-v2-m3": _ENCODER
    | {
        "_name_or_path": "BAAI/bge-m3",
        "architectures": ["XLMRobertaForSequenceClassification"],
        "bos_token_id": 0,
        "classifier_dropout": None,
        "eos_token_id": 2,
        "hidden_size": 1024,
        "id2label": {"0": "LABEL_0"},
        "intermediate_size": 4096,
        "label2id": {"LABEL_0": 0},
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 8194,
        "model_type": "xlm-roberta",
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "output_past": True,
        "pad_token_id": 1,
        "torch_dtype": "float32",
        "transformers_version": "4.38.1",
        "type_vocab_size": 1,
        "use_cache": True,
        "vocab_size": 250002,
    },
    "meta-llama/Llama-3.2-1B-Instruct": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0",
        "use_cache": True,
        "vocab_size": 128256,
    },
}


def read_both(folder: Path, published: dict[str, Any]) -> tuple[ModelConfig, ModelConfig]:
    """The record of the published form, and of what transformers makes of it."""
    old, new = folder / "published", folder / "rewritten"
    old.mkdir()
    (old / "config.json").write_text(json.dumps(published))
    AutoConfig.from_pretrained(old).save_pretrained(new)
    ours = msgspec.structs.replace(read_model_config(old), path="")
    return ours, msgspec.structs.replace(read_model_config(new), path="")


@pytest.mark.parametrize("name", PUBLISHED)
def test_both_forms_are_one_record(tmp_path: Path, name: str) -> None:
    published, rewritten = read_both(tmp_path, PUBLISHED[name])
    assert published == rewritten


def test_what_the_records_say(tmp_path: Path) -> None:
    """Of the numbers that no key states as they are."""
    for name, published in PUBLISHED.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps(published))
    read = {name: read_model_config(tmp_path / name) for name in PUBLISHED}
    reranker = read["BAAI/bge-reranker-v2-m3"]
    assert (reranker.max_model_len, reranker.num_labels, reranker.sigmoid_scores) == (8192, 1, True)
    assert read["xlm-roberta-base"].max_model_len == 512
    llama = read["meta-llama/Llama-3.2-1B-Instruct"]
    assert llama.has_kv_cache
    assert llama.attention[0].rope == RopeConfig(theta=5e5, type="llama3", factor=32.0)
