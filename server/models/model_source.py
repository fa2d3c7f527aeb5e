"""Finds or downloads the folder of a model, and checks that its checkpoint is complete."""

from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open

from engine_core.tokenization.tokenizer import Tokenizer
from workers.contract.config import LoadFormat
from workers.contract.model_config import ModelConfig, ModelConfigError, read_json

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_CONFIG_PATTERNS = ("*.json", "*.jinja")
_WEIGHT_PATTERN = "*.safetensors"


class ModelSourceError(ValueError):
    """A model is not found or its checkpoint is incomplete; one line says what is missing."""


def model_folder(source: str, load_format: LoadFormat) -> Path:
    """The folder that `source` names: a folder as it is, a hub id after a download.

    For a hub id only configuration, tokenizer and safetensors files are fetched (no weights for
    `dummy`). Raises ModelSourceError.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.exists():
        raise ModelSourceError(f"{source} is a file; a model is a folder or a hub id")
    if source.startswith((".", "/", "~")):
        raise ModelSourceError(f"there is no folder {source}")
    # Imported here: it takes time, and models in folders do not need it.
    from server.models.hub_download import HubError, fetch  # noqa: PLC0415

    weights = [] if load_format == "dummy" else [_WEIGHT_PATTERN]
    try:
        return fetch(source, [*_CONFIG_PATTERNS, *weights])
    except HubError as error:
        raise ModelSourceError(str(error)) from None


def check_checkpoint(model: ModelConfig, load_format: LoadFormat) -> None:
    """Find missing or broken files before any process starts.

    Raises TokenizerError if the tokenizer cannot be read, and ModelSourceError if a weight file is
    missing, truncated, or holds a tensor that the index does not list. `dummy` weights have no
    files.
    """
    Tokenizer.for_model(model, load_format)
    if load_format == "dummy":
        return
    folder = Path(model.path)
    index = _index(folder)
    for file in _weight_files(folder, index):
        if not file.exists():
            raise ModelSourceError(f"{file.name} is missing from {folder}")
        names = _tensor_names(file)
        if index is not None and (others := sorted(names - index.keys())):
            raise ModelSourceError(f"{file} holds {others[0]}, which is not in {_INDEX_FILE}")


def _tensor_names(file: Path) -> set[str]:
    try:
        with cast(Any, safe_open(file, framework="np")) as tensors:
            return set(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise ModelSourceError(f"{file} cannot be read: {error}") from None


def _index(folder: Path) -> dict[str, str] | None:
    """Tensor name -> file, if the weights are in several files; otherwise None."""
    if (folder / _SINGLE_FILE).exists() or not (folder / _INDEX_FILE).exists():
        return None
    try:
        return read_json(folder / _INDEX_FILE)["weight_map"]
    except (ModelConfigError, KeyError) as error:
        raise ModelSourceError(f"{folder / _INDEX_FILE} is not an index: {error}") from None


def _weight_files(folder: Path, index: dict[str, str] | None) -> list[Path]:
    names = [_SINGLE_FILE] if index is None else dict.fromkeys(index.values())
    return [folder / name for name in names]
