"""Tells folders that hold something else than a checkpoint in transformers' format."""

from pathlib import Path
from typing import Any

from workers.contract.config_keys.keys import Refuse
from workers.contract.model_config import ModelConfigError, read_json

GGUF = "GGUF is not read: serve the checkpoint in safetensors that it was made from"
_ADAPTER_FILE = "adapter_config.json"


def other_format(folder: Path) -> str | None:
    """What `folder` holds and the way out, in one line; None for any other folder."""
    if (folder / _ADAPTER_FILE).exists() and not (folder / "config.json").exists():
        return f"{folder} is an adapter{_base_of(folder)}, not a model: merge it into the weights"
    if any(any(folder.glob(pattern)) for pattern in ("*.gguf", "*/*.gguf")):
        return f"{folder} holds GGUF files; {GGUF}"
    if (folder / "params.json").exists() and any(folder.glob("consolidated*.safetensors")):
        return (
            f"{folder} is in Mistral's own format (params.json, consolidated*.safetensors): serve "
            "the same model in transformers' format (config.json, model*.safetensors)"
        )
    return None


def read_config(folder: Path) -> dict[str, Any]:
    """The object in `config.json`. Raises ModelConfigError, which names another format."""
    if not (folder / "config.json").exists() and (other := other_format(folder)):
        raise ModelConfigError(other)
    return read_json(folder / "config.json")


def check_adapter(folder: Path, refuse: Refuse) -> None:
    """Refuse an adapter beside a model."""
    if (file := folder / _ADAPTER_FILE).exists():
        reason = "adapters are not supported; merge it into the weights"
        refuse(ModelConfigError(f"{file}: {reason}"))


def _base_of(folder: Path) -> str:
    base = read_json(folder / _ADAPTER_FILE).get("base_model_name_or_path")
    return f" of {base}" if base else ""
