"""Finds or downloads the folder of a model, and checks that its checkpoint is complete."""

import zipfile
from math import prod
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open

from engine_core.tokenization.tokenizer import TOKENIZER_FILE, Tokenizer
from server.models.slow_tokenizer import SLOW_FILES
from server.settings.settings import flag_name
from workers.contract.checkpoint.folder_files import GGUF, WeightFiles, find_weights
from workers.contract.config import LoadFormat
from workers.contract.model_config import ModelConfig, NormalizeConfig


class SetupError(ValueError):
    """The setting `key` does not suit the model or other settings. `reason` is one line."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{flag_name(key)}: {reason}")
        self.key = key
        self.reason = reason


class ModelSourceError(ValueError):
    """A model is not found or its checkpoint is incomplete or broken. One line says which file."""


_CONFIG_PATTERNS = ("*.json", "*.jinja")
_SAFETENSORS = "*.safetensors"
_PICKLES = "pytorch_model*.bin"


def model_folder(source: str, load_format: LoadFormat) -> Path:
    """The folder that `source` names: a folder as it is, a hub id after a download of what is read
    (no weights for `dummy`). Raises ModelSourceError."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if folder.exists() and folder.suffix == ".gguf":
        raise ModelSourceError(f"{source} is a GGUF file; {GGUF}")
    if folder.exists():
        raise ModelSourceError(f"{source} is a file; a model is a folder or a hub id")
    if source.startswith((".", "/", "~")):
        raise ModelSourceError(f"there is no folder {source}")
    # Imported here: it takes time, and models in folders do not need it.
    from server.models.hub_download import fetch, has_files  # noqa: PLC0415

    weights = [] if load_format == "dummy" else [_SAFETENSORS]
    folder = fetch(source, [*_CONFIG_PATTERNS, *weights])
    if weights and (more := _what_is_not_preferred(folder)):
        folder = fetch(source, [*_CONFIG_PATTERNS, *weights, *more])
    any_weights = [*folder.glob(_SAFETENSORS), *folder.glob(_PICKLES)]
    lacking = not (folder / "config.json").exists() or (weights and not any_weights)
    if lacking and has_files(source, "*.gguf"):
        raise ModelSourceError(f"{source} holds GGUF files; {GGUF}")
    return folder


def _what_is_not_preferred(folder: Path) -> list[str]:
    """Patterns to download in place of files that the hub has not: tokenizer.json, safetensors of
    the model or of a Dense module of sentence-transformers."""
    slow = () if (folder / TOKENIZER_FILE).exists() else SLOW_FILES
    modules = [folder, *folder.glob("*_Dense*")]
    lacking = [module for module in modules if not any(module.glob(_SAFETENSORS))]
    return [*slow, *(str(module.relative_to(folder) / _PICKLES) for module in lacking)]


_LEGACY_PICKLE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How a file begins that torch.save wrote before torch 1.6: a pickle of this magic number."""


WeightHeads = dict[str, int]
"""Elements of each tensor by its name. Empty for pickles, which the loader alone reads."""


def read_heads(folder: Path, module: str = "") -> WeightHeads:
    """The heads of the weights of a model, or of one of its modules.

    Raises ModelSourceError or ModelConfigError for a file that is missing, truncated or not as its
    index says.
    """
    weights = find_weights(folder, module)
    heads: WeightHeads = {}
    for file in weights.files:
        if weights.format == "pytorch":
            _check_archive(file)
        else:
            heads |= _elements(weights, file)
    return heads


def _elements(weights: WeightFiles, file: Path) -> dict[str, int]:
    """Also checks that the file is as long as its head says."""
    try:
        with cast(Any, safe_open(file, framework="np")) as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelSourceError(f"{file} cannot be read: {error}") from None
    if weights.index is not None and (others := sorted(shapes.keys() - weights.index.keys())):
        raise ModelSourceError(f"{file} holds {others[0]}, which is not in its index")
    return {name: prod(shape) for name, shape in shapes.items()}


def _check_archive(file: Path) -> None:
    """Raises ModelSourceError unless the file is a zip archive, or begins as a legacy one does."""
    try:
        with file.open("rb") as start:
            if start.read(len(_LEGACY_PICKLE)) != _LEGACY_PICKLE:
                zipfile.ZipFile(start).close()
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelSourceError(f"{file} cannot be read: {error}") from None


def check_checkpoint(model: ModelConfig, load_format: LoadFormat) -> WeightHeads | None:
    """Find missing or broken files before any process starts. Returns the heads of the weights;
    None for `dummy` weights.

    Raises TokenizerError if the tokenizer cannot be read, and what `read_heads` raises.
    """
    Tokenizer.for_model(model, load_format)
    if load_format == "dummy":
        return None
    return [read_heads(Path(model.path), path) for path in weight_folders(model)][-1]


def weight_folders(model: ModelConfig) -> list[str]:
    """The folders with weights: of its modules, and "" for its own at last."""
    modules = [module for module in model.modules if not isinstance(module, NormalizeConfig)]
    return [*(module.path for module in modules), ""]
