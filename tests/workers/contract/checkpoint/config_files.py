"""Folders of checkpoints with a config.json alone, and what is read of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, LlamaConfig

from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.config import AskedTask
from workers.contract.model_config import ModelConfig, ModelConfigError

LENGTH = 64
SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}
"""Keys of `config.json` that most families have, with small numbers."""
_FOLDER = Path(__file__).parent / "published"


def _published(folder: Path) -> dict[str, dict[str, Any]]:
    """Configurations by the checkpoints' names on the hub."""
    return {
        file.stem.replace("--", "/"): json.loads(file.read_text())
        for file in sorted(folder.glob("*.json"))
    }


PUBLISHED = _published(_FOLDER)
WITH_OWN_CODE = _published(_FOLDER / "own_code")
"""Those of classes that transformers does not have."""
FACTORS = [2.0] * 64
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": FACTORS,
    "long_factor": FACTORS,
}
BERTS = ("BertModel", "BertForMaskedLM", "BertForSequenceClassification")


def written(architecture: str = "LlamaForCausalLM", **changes: Any) -> dict[str, Any]:
    """The configuration that transformers writes for a Llama or a BERT, but for `changes`."""
    kind = LlamaConfig if architecture.startswith("Llama") else BertConfig
    return json.loads(kind(architectures=[architecture]).to_json_string()) | changes


def read(folder: Path, config: Mapping[str, Any], asked: AskedTask | None = None) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    return read_model_config(folder, asked)


def refusal(folder: Path, config: Mapping[str, Any]) -> str:
    """The line in which a configuration is refused, without the file that it names first."""
    with pytest.raises(ModelConfigError) as error:
        read(folder, config)
    file, message = str(folder / "config.json"), str(error.value)
    assert message.startswith(file)
    assert "\n" not in message
    return message.removeprefix(file).removeprefix(": ")
