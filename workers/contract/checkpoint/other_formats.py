"""Tells folders that hold something else than a checkpoint in transformers' format."""

from pathlib import Path
from typing import Any

from workers.contract.checkpoint.folder_files import find_file, read_json
from workers.contract.model_config import ModelConfigError

GGUF = "GGUF is not read: serve the checkpoint in safetensors that it was made from"
ADAPTER_FILE = "adapter_config.json"


def other_format(folder: Path) -> str | None:
    """What `folder` holds and the way out, in one line; None for any other folder."""
    if find_file(folder, ADAPTER_FILE) and not find_file(folder, "config.json"):
        return f"{folder} is an adapter{_base_of(folder)}, not a model: merge it into the weights"
    if any(any(folder.glob(pattern)) for pattern in ("*.gguf", "*/*.gguf")):
        return f"{folder} holds GGUF files; {GGUF}"
    if find_file(folder, "params.json") and any(folder.glob("consolidated*.safetensors")):
        return (
            f"{folder} is in Mistral's own format (params.json, consolidated*.safetensors): serve "
            "the same model in transformers' format (config.json, model*.safetensors)"
        )
    return None


def read_config(folder: Path) -> dict[str, Any]:
    """The object in `config.json`. Raises ModelConfigError, which names another format."""
    if not find_file(folder, "config.json") and (other := other_format(folder)):
        raise ModelConfigError(other)
    return read_json(folder, "config.json")


def _base_of(folder: Path) -> str:
    base = read_json(folder, ADAPTER_FILE).get("base_model_name_or_path")
    return f" of {base}" if base else ""
