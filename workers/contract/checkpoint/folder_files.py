"""Reads the files of a checkpoint's folder, which may come from anybody.

A file is a regular one that lies in the folder, or in the hub's cache to which the folder belongs.
Its size is bounded, and the depth of its JSON.
"""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from workers.contract.model_config import ModelConfigError

ValueT = TypeVar("ValueT")

CONFIG_BYTES = 16 << 20
"""Most bytes of a configuration or a template. As Python objects they may take 30 times as many."""
INDEX_BYTES = 64 << 20
"""Most bytes of an index of weights: some half a million tensors."""
TOKENIZER_BYTES = 128 << 20
"""Most bytes of a tokenizer or a vocabulary: some two million tokens."""
_MOST_LEVELS = 64
"""Of objects and lists within each other."""


class UnsafeFileError(ModelConfigError):
    """A file that is not read, whatever is in it; one line says why."""


def find_file(folder: Path, name: str | Path, most_bytes: int | None = None) -> Path | None:
    """The file `name` of a folder, or None if it is missing. Raises UnsafeFileError for what may
    not be read."""
    file = folder / name
    try:
        real = file.resolve()
        inside = any(map(real.is_relative_to, _places(folder.resolve())))
        status = real.stat() if inside else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, RuntimeError, ValueError) as error:  # of links that lead to each other, a NUL
        raise UnsafeFileError(f"{str(file)!r} cannot be read: {error}") from None
    if status is None:
        reason = f"leads to {real}, out of the checkpoint's folder: copy the file into the folder"
        raise UnsafeFileError(f"{file} {reason}")
    if not stat.S_ISREG(status.st_mode):
        raise UnsafeFileError(f"{file} is not a regular file")
    if most_bytes is not None and status.st_size > most_bytes:
        reason = f"has {status.st_size} bytes; of such a file at most {most_bytes} are read"
        raise UnsafeFileError(f"{file} {reason}")
    return file


def read_bytes(folder: Path, name: str | Path, most_bytes: int = CONFIG_BYTES) -> bytes:
    """What is in a file. Raises ModelConfigError."""
    file = find_file(folder, name, most_bytes)
    if file is None:
        missing = folder / name
        raise ModelConfigError(f"{missing.name} is missing from {missing.parent}")
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelConfigError(f"{file} cannot be read: {error}") from None


def read_text(folder: Path, name: str | Path) -> str:
    """The text in a file. Raises ModelConfigError."""
    try:
        return read_bytes(folder, name).decode()
    except UnicodeDecodeError as error:
        raise ModelConfigError(f"{folder / name} cannot be read: {error}") from None


def read_json(folder: Path, name: str | Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelConfigError."""
    return decoded(folder, name, dict[str, Any])


def decoded(
    folder: Path, name: str | Path, kind: type[ValueT], most_bytes: int = CONFIG_BYTES
) -> ValueT:
    """The value in a file of JSON. Raises ModelConfigError, naming the file, unless it is a
    `kind`."""
    data = read_bytes(folder, name, most_bytes)
    try:
        return msgspec.convert(_json_value(data), kind)
    except (RecursionError, ValueError) as error:
        raise ModelConfigError(f"{folder / name} cannot be read: {error}") from None


def optional(folder: Path, name: str | Path, kind: type[ValueT]) -> ValueT | None:
    """The value in a file of JSON, or None without such a file. Raises ModelConfigError."""
    return decoded(folder, name, kind) if find_file(folder, name) else None


def _places(folder: Path) -> Iterator[Path]:
    """Where the files of a folder may be. The cache has those of a snapshot in `blobs`, beside the
    snapshots or shared by all models."""
    yield folder
    if folder.parent.name == "snapshots":
        model = folder.parent.parent
        yield (model / "blobs").resolve()
        yield (model.parent / "blobs").resolve()


def _json_value(data: bytes) -> Any:
    """Raises RecursionError or ValueError."""
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError:
        value = json.loads(data)  # it knows Infinity and NaN, which Python writes
        msgspec.json.encode(value)  # and halves of characters, which are no text
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    """Raises ValueError where objects and lists are nested too deeply."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return
    raise ValueError(f"it has more than {_MOST_LEVELS} objects and lists within each other")


def _inner(value: Any) -> list[Any]:
    """The values in an object or a list which may have others in them."""
    if isinstance(value, dict):
        found = list(cast("dict[str, Any]", value).values())
    elif isinstance(value, list):
        found = cast("list[Any]", value)
    else:
        return []
    return [each for each in found if isinstance(each, dict | list)]
