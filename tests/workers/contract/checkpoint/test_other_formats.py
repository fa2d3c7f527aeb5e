"""Folders that are no checkpoint in transformers' format are named for what they are."""

import re
from pathlib import Path

import pytest

from server.models.model_source import ModelSourceError, model_folder
from tests.server.checkpoint_folders import LLAMA, write_json
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.checkpoint.folder_files import find_weights
from workers.contract.model_config import ModelConfigError


def refusal(folder: Path) -> str:
    with pytest.raises(ModelConfigError) as error:
        read_model_config(folder)
    return str(error.value)


def test_an_adapter(tmp_path: Path) -> None:
    write_json(tmp_path / "adapter_config.json", {"base_model_name_or_path": "Qwen/Qwen3-8B"})
    (tmp_path / "adapter_model.safetensors").touch()
    assert refusal(tmp_path) == (
        f"{tmp_path} is an adapter of Qwen/Qwen3-8B, not a model: merge it into the weights"
    )
    write_json(tmp_path / "adapter_config.json", {})
    assert f"{tmp_path} is an adapter, not a model" in refusal(tmp_path)


def test_gguf_files_in_folders_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "Q4_K_M").mkdir()
    (tmp_path / "Q4_K_M/llama-00001-of-00002.gguf").touch()
    assert refusal(tmp_path).startswith(f"{tmp_path} holds GGUF files; ")


def test_gguf_files(tmp_path: Path) -> None:
    file = tmp_path / "llama-q4.gguf"
    file.write_bytes(b"GGUF")
    assert refusal(tmp_path).startswith(f"{tmp_path} holds GGUF files; GGUF is not read: serve the")
    with pytest.raises(ModelSourceError, match=re.escape(f"{file} is a GGUF file; GGUF is not")):
        model_folder(str(file), "auto")
    write_json(tmp_path / "config.json", LLAMA)
    read_model_config(tmp_path)
    with pytest.raises(ModelConfigError, match="holds GGUF files"):
        find_weights(tmp_path)


def test_mistrals_own_format(tmp_path: Path) -> None:
    write_json(tmp_path / "params.json", {"dim": 4096})
    assert refusal(tmp_path) == f"config.json is missing from {tmp_path}"
    (tmp_path / "consolidated.safetensors").touch()
    assert refusal(tmp_path).startswith(f"{tmp_path} is in Mistral's own format (params.json, ")


def test_beside_a_checkpoint_they_are_no_matter(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", LLAMA)
    for name in ("model.safetensors", "consolidated.safetensors", "params.json", "a.gguf"):
        (tmp_path / name).touch()
    read_model_config(tmp_path)
    assert [file.name for file in find_weights(tmp_path).files] == ["model.safetensors"]
