"""Reads the files of a checkpoint's folder, which may come from anybody.

A file is a regular one that lies in the folder, or in the hub's cache to which the folder belongs.
Its size is bounded, and the depth of its JSON.
"""

import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

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
"""The deepest nesting of objects and lists."""


class UnsafeFileError(ModelConfigError):
    """A file that is not read, whatever is in it. One line says why."""


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
    """The contents of a file. Raises ModelConfigError."""
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


def converted(file: Path, values: dict[str, Any], kind: type[ValueT]) -> ValueT:
    """The `values` of a file as a `kind`. Raises ModelConfigError, naming the file."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ModelConfigError(f"{file} is not valid: {error}") from None


def optional(folder: Path, name: str | Path, kind: type[ValueT]) -> ValueT | None:
    """The value in a file of JSON, or None without such a file. Raises ModelConfigError."""
    return decoded(folder, name, kind) if find_file(folder, name) else None


def _places(folder: Path) -> Iterator[Path]:
    """Folders in which the files of a folder may be. The hub's cache has a snapshot's files in
    `blobs`, beside the snapshots or shared by all models."""
    yield folder
    if folder.parent.name == "snapshots":
        model = folder.parent.parent
        yield (model / "blobs").resolve()
        yield (model.parent / "blobs").resolve()


def _json_value(data: bytes) -> Any:
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError:
        value = json.loads(data)  # it knows Infinity and NaN, which Python writes
        msgspec.json.encode(value)  # and halves of characters, which are no text
    _check_depth(value)
    return value


def _check_depth(value: Any, levels: int = _MOST_LEVELS) -> None:
    """Raises ValueError where objects and lists are nested too deeply."""
    if isinstance(value, dict):
        value = list(cast("dict[str, Any]", value).values())
    if isinstance(value, list):
        if not levels:
            raise ValueError(f"it has more than {_MOST_LEVELS} objects and lists within each other")
        for inner in cast("list[Any]", value):
            if isinstance(inner, dict | list):
                _check_depth(inner, levels - 1)


GGUF = "GGUF is not read: serve the checkpoint in safetensors that it was made from"
ADAPTER_FILE = "adapter_config.json"


def other_format(folder: Path) -> str | None:
    """A line with the contents of `folder` and the way out. None for any other folder."""
    if find_file(folder, ADAPTER_FILE) and not find_file(folder, "config.json"):
        base = read_json(folder, ADAPTER_FILE).get("base_model_name_or_path")
        of = f" of {base}" if base else ""
        return f"{folder} is an adapter{of}, not a model: merge it into the weights"
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


WeightFormat = Literal["safetensors", "pytorch"]

_SINGLE_FILES: dict[WeightFormat, str] = {
    "safetensors": "model.safetensors",
    "pytorch": "pytorch_model.bin",
}
"""The preferred format first. Beside each may be an index, NAME.index.json."""


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """One set of weights: one file, or those that an index lists. `index` maps the tensors' names
    to files."""

    format: WeightFormat
    files: tuple[Path, ...]
    index: Mapping[str, Path] | None = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str] = {}


def find_weights(folder: Path, module: str = "") -> WeightFiles:
    """The first complete set of weights, of a model or of the `module` in a folder of its own, or
    in the pickle (`.pt`) that it is.

    safetensors come before pickles, and an index before a single file. Raises ModelConfigError if
    there is none, if an index is not one, or for a file that may not be read.
    """
    own, fault = folder / module, None
    if module.endswith(".pt") and find_file(folder, module):
        return WeightFiles("pytorch", (own,))
    for weight_format, name in _SINGLE_FILES.items():
        if find_file(folder, index_file := Path(module, f"{name}.index.json")):
            index = _read_index(folder, index_file)
            files = tuple(dict.fromkeys(index.values()))
            lacking = next((file for file in files if find_file(folder, file) is None), None)
            if lacking is None:
                return WeightFiles(weight_format, files, index)
            missing = f"{lacking.name}, listed in its index, is missing from {lacking.parent}"
            fault = fault or missing
        if file := find_file(folder, Path(module, name)):
            return WeightFiles(weight_format, (file,))
    raise ModelConfigError(
        fault or other_format(own) or f"{_SINGLE_FILES['safetensors']} is missing from {own}"
    )


def _read_index(folder: Path, name: Path) -> dict[str, Path]:
    weight_map = decoded(folder, name, _Index, INDEX_BYTES).weight_map
    if not weight_map:
        raise ModelConfigError(f"{folder / name} is not an index: it has no weight_map")
    return {tensor: folder / name.parent / part for tensor, part in weight_map.items()}
