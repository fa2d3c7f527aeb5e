"""Digests by which two hosts see that they have the same model."""

import hashlib
import struct
from pathlib import Path

import msgspec

from workers.contract.checkpoint.folder_files import find_weights, read_bytes
from workers.contract.config import LoadFormat
from workers.contract.model_config import ModelConfigError

_CONFIG, _INDEX = "config.json", "the index of its weights"
_HEADER_SIZE = struct.Struct("<Q")
_MOST_HEADER = 100_000_000
"""Bytes of the longest header of a safetensors file, by its format."""


def model_digests(folder: Path, load_format: LoadFormat) -> dict[str, str]:
    """The digest of each file that says what a model is, by name.

    These are its configuration, and the index of its weights or, without one, the header of each
    safetensors file. Raises ModelConfigError."""
    contents = {_CONFIG: read_bytes(folder, _CONFIG)}
    if load_format != "dummy":
        weights = find_weights(folder)
        if weights.index is not None:
            by_tensor = {tensor: file.name for tensor, file in weights.index.items()}
            contents[_INDEX] = msgspec.json.encode(by_tensor, order="sorted")
        elif weights.format == "safetensors":
            contents |= {file.name: _header(file) for file in weights.files}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def first_difference(own: dict[str, str], others: dict[str, str]) -> str | None:
    """The first file, by name, that is not the same in both."""
    names = sorted(own.keys() | others.keys())
    return next((name for name in names if own.get(name) != others.get(name)), None)


def _header(file: Path) -> bytes:
    try:
        with file.open("rb") as source:
            size = source.read(_HEADER_SIZE.size)
            return size + source.read(min(_MOST_HEADER, *_HEADER_SIZE.unpack(size)))
    except (OSError, struct.error) as error:
        raise ModelConfigError(f"{file} cannot be read: {error}") from None
