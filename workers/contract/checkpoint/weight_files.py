"""Which files of a checkpoint's folder hold its weights (nothing of them is read here)."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from workers.contract.checkpoint.folder_files import INDEX_BYTES, decoded, find_file
from workers.contract.checkpoint.other_formats import other_format
from workers.contract.model_config import ModelConfigError

WeightFormat = Literal["safetensors", "pytorch"]

_SINGLE_FILES: dict[WeightFormat, str] = {
    "safetensors": "model.safetensors",
    "pytorch": "pytorch_model.bin",
}
"""The preferred format first. Beside each may be an index, NAME.index.json."""


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """One set of weights: one file, or those that an index lists.

    `index` maps the tensors' names to files; None without an index. `missing` says in words which
    file is not there.
    """

    format: WeightFormat
    files: tuple[Path, ...]
    index: Mapping[str, Path] | None = None
    missing: str | None = None


class _Index(msgspec.Struct):
    weight_map: dict[str, str] = {}


def find_weights(folder: Path, module: str = "") -> WeightFiles:
    """The weights that are read, of a model or of the `module` in a folder of its own: the first
    set that is complete, safetensors before pickles, and of one format an index before a single
    file.

    Raises ModelConfigError if there is none, if an index is not one, or for a file that may not be
    read.
    """
    sets = list(_sets(folder, Path(module)))
    for weights in sets:
        if weights.missing is None:
            return weights
    (name, *_) = _SINGLE_FILES.values()
    own = folder / module
    if sets:
        raise ModelConfigError(sets[0].missing)
    raise ModelConfigError(other_format(own) or f"{name} is missing from {own}")


def _sets(folder: Path, module: Path) -> Generator[WeightFiles]:
    for weight_format, name in _SINGLE_FILES.items():
        if find_file(folder, module / f"{name}.index.json"):
            yield _of_index(weight_format, folder, module, f"{name}.index.json")
        if file := find_file(folder, module / name):
            yield WeightFiles(weight_format, (file,))


def _of_index(weight_format: WeightFormat, folder: Path, module: Path, name: str) -> WeightFiles:
    weight_map = decoded(folder, module / name, _Index, INDEX_BYTES).weight_map
    if not weight_map:
        raise ModelConfigError(f"{folder / module / name} is not an index: it has no weight_map")
    index = {tensor: folder / module / part for tensor, part in weight_map.items()}
    for part in dict.fromkeys(weight_map.values()):
        if find_file(folder, module / part) is None:
            file = folder / module / part
            missing = f"{file.name}, listed in its index, is missing from {file.parent}"
            return WeightFiles(weight_format, (), index, missing)
    return WeightFiles(weight_format, tuple(dict.fromkeys(index.values())), index)
