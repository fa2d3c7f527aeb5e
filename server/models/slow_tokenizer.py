"""Has a tokenizer that exists only in slow form converted once, by a process of its own.

`convert_main.py` runs in it. The result is kept by the digest of the tokenizer's files.
"""

import hashlib
import logging
import tempfile
from importlib.util import find_spec
from pathlib import Path

import msgspec

from engine_core.tokenization.tokenizer import TOKENIZER_FILE, TokenizerError
from server.models.program import ProgramError, run_program
from server.settings.settings import cache_folder
from workers.contract.checkpoint.folder_files import TOKENIZER_BYTES, find_file, read_bytes
from workers.contract.config import LoadFormat
from workers.contract.model_config import ModelConfig

SLOW_FILES = ("vocab.txt", "vocab.json", "merges.txt", "*.model")
_SETTINGS = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_TEKKEN_FILE = "tekken.json"
_PROGRAM = "server.models.convert_main"

_logger = logging.getLogger(__name__)


def with_tokenizer(model: ModelConfig, load_format: LoadFormat) -> ModelConfig:
    """`model` with its `tokenizer_file`, if that has to be converted. Raises TokenizerError if it
    cannot be, or ModelConfigError."""
    folder = Path(model.path)
    if load_format == "dummy" or find_file(folder, TOKENIZER_FILE):
        return model
    slow = slow_files(folder)
    if not slow:
        return model
    digest = _digest([*slow, *_files(folder, _SETTINGS)])
    target = cache_folder() / "tokenizers" / f"{digest}.json"
    if not target.exists():
        _convert(folder, ", ".join(file.name for file in slow), target)
    return msgspec.structs.replace(model, tokenizer_file=str(target))


def slow_files(folder: Path) -> list[Path]:
    """The files that a tokenizer is converted from. Raises TokenizerError for a kind that cannot
    be."""
    slow = _files(folder, SLOW_FILES)
    if not slow and find_file(folder, _TEKKEN_FILE):
        raise TokenizerError(
            f"{folder} has its tokenizer as {_TEKKEN_FILE} (Tekken), which is not supported: "
            f"{TOKENIZER_FILE} is missing"
        )
    return slow


def _files(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(file for pattern in patterns for file in folder.glob(pattern))


def _digest(files: list[Path]) -> str:
    """By names and contents. Raises ModelConfigError for a file that cannot be read."""
    digest = hashlib.sha256()
    for file in files:
        content = read_bytes(file.parent, file.name, TOKENIZER_BYTES)
        digest.update(f"{file.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:32]


def _convert(folder: Path, names: str, target: Path) -> None:
    """Convert into a file beside `target`, then rename it: no process sees half of it."""
    subject = f"the tokenizer of {folder} exists only in slow form ({names})"
    if find_spec("transformers") is None:
        raise TokenizerError(f"{subject}: pip install 'penstock[convert]' to have it converted")
    _logger.info("%s; it is converted once", subject)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as private:
            written = Path(private) / TOKENIZER_FILE
            run_program(_PROGRAM, str(folder), str(written))
            written.replace(target)
    except ProgramError as error:
        raise TokenizerError(f"{subject}, and cannot be converted: {error}") from None
    except OSError as error:
        raise TokenizerError(f"{subject}, and {target} cannot be written: {error}") from None
