"""Small checkpoint folders, written without torch: real configurations, tokenizers that split at
spaces, weights that are whole files but fit nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
}
BERT = SHAPE | {"architectures": ["BertModel"], "max_position_embeddings": 64, "type_vocab_size": 2}
LLAMA = SHAPE | {
    "architectures": ["LlamaForCausalLM"],
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "eos_token_id": 1,
}
LLAMA_8B: dict[str, Any] = LLAMA | {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "vocab_size": 128_256,
    "tie_word_embeddings": False,
}
"""The shape of Llama 3.1 8B."""
WRAPPED: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": 1,
    "text_config": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64},
    "vision_config": {"hidden_size": 8},
}
"""A language model beside a vision tower."""


def write_checkpoint(folder: Path, config: dict[str, Any]) -> Path:
    """config.json, tokenizer.json and model.safetensors in a new folder."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config)
    vocabulary = {"<unk>": 0, "<eos>": 1} | {f"w{token}": token for token in range(2, 64)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"weight": np.zeros((8, 8), np.float32)}, folder / "model.safetensors")
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def write_modules(folder: Path, **settings: dict[str, Any]) -> None:
    """modules.json of an embedder: a Transformer, then a module of each kind in `settings`."""
    paths = {"Transformer": ""} | {kind: f"{n}_{kind}" for n, kind in enumerate(settings, 1)}
    modules = [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in paths.items()]
    write_json(folder / "modules.json", modules)
    for kind, own in settings.items():
        (folder / paths[kind]).mkdir()
        write_json(folder / paths[kind] / "config.json", own)
