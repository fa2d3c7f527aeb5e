"""Finds or downloads the folder of a model, and checks that its checkpoint is complete."""

from pathlib import Path

from engine_core.tokenization.tokenizer import TOKENIZER_FILE, Tokenizer
from server.conversion.slow_tokenizer import SLOW_FILES
from server.models.setup_error import ModelSourceError
from server.models.weight_heads import WeightHeads, read_heads
from workers.contract.checkpoint.folder_files import GGUF
from workers.contract.config import LoadFormat
from workers.contract.model_config import ModelConfig, NormalizeConfig

_CONFIG_PATTERNS = ("*.json", "*.jinja")
_SAFETENSORS = "*.safetensors"
_PICKLES = "pytorch_model*.bin"


def model_folder(source: str, load_format: LoadFormat) -> Path:
    """The folder that `source` names: a folder as it is, a hub id after a download.

    For a hub id only configuration, tokenizer and weights are fetched (no weights for
    `dummy`). Raises ModelSourceError.
    """
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
    lacking = not (folder / "config.json").exists() or (weights and _lacks_weights(folder))
    if lacking and has_files(source, "*.gguf"):
        raise ModelSourceError(f"{source} holds GGUF files; {GGUF}")
    return folder


def _lacks_weights(folder: Path) -> bool:
    return not any(any(folder.glob(pattern)) for pattern in (_SAFETENSORS, _PICKLES))


def _what_is_not_preferred(folder: Path) -> list[str]:
    """What to download where the hub has no safetensors of the model, or of a Dense module of
    sentence-transformers; or no tokenizer.json."""
    slow = () if (folder / TOKENIZER_FILE).exists() else SLOW_FILES
    modules = [folder, *folder.glob("*_Dense*")]
    lacking = [module for module in modules if not any(module.glob(_SAFETENSORS))]
    return [*slow, *(str(module.relative_to(folder) / _PICKLES) for module in lacking)]


def check_checkpoint(model: ModelConfig, load_format: LoadFormat) -> WeightHeads | None:
    """Find missing or broken files before any process starts; what the heads of the weights say.

    Raises TokenizerError if the tokenizer cannot be read, and ModelSourceError if a weight file is
    missing, truncated, or holds a tensor that the index does not list. `dummy` weights have no
    files, and no heads.
    """
    Tokenizer.for_model(model, load_format)
    if load_format == "dummy":
        return None
    for module in model.modules:
        if not isinstance(module, NormalizeConfig):
            read_heads(Path(model.path), module.path)
    return read_heads(Path(model.path))
