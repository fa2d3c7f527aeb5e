"""Which files of a checkpoint's folder hold its weights (nothing of them is read here)."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workers.contract.checkpoint.other_formats import other_format
from workers.contract.model_config import ModelConfigError, read_json

WeightFormat = Literal["safetensors", "pytorch"]

_SINGLE_FILES: dict[WeightFormat, str] = {
    "safetensors": "model.safetensors",
    "pytorch": "pytorch_model.bin",
}
"""The preferred format first. Beside each may be an index, NAME.index.json."""


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """One set of weights: one file, or those that an index lists.

    `index` maps the tensors' names to files; None without an index.
    """

    format: WeightFormat
    files: tuple[Path, ...]
    index: Mapping[str, Path] | None = None

    @property
    def missing(self) -> str | None:
        """The first file that is not there, with the reason why it should be, in words."""
        for file in self.files:
            if not file.exists():
                listed = "" if self.index is None else ", listed in its index,"
                return f"{file.name}{listed} is missing from {file.parent}"
        return None


def find_weights(folder: Path) -> WeightFiles:
    """The weights that are read: the first set that is complete, safetensors before pickles, and
    of one format an index before a single file.

    Raises ModelConfigError if there is none, or if an index is not one.
    """
    sets = list(_sets(folder))
    for weights in sets:
        if weights.missing is None:
            return weights
    (name, *_) = _SINGLE_FILES.values()
    if sets:
        raise ModelConfigError(sets[0].missing)
    raise ModelConfigError(other_format(folder) or f"{name} is missing from {folder}")


def _sets(folder: Path) -> Generator[WeightFiles]:
    for weight_format, name in _SINGLE_FILES.items():
        index_file = folder / f"{name}.index.json"
        if index_file.exists():
            index = _read_index(index_file)
            yield WeightFiles(weight_format, tuple(dict.fromkeys(index.values())), index)
        if (folder / name).exists():
            yield WeightFiles(weight_format, (folder / name,))


def _read_index(file: Path) -> dict[str, Path]:
    weight_map: dict[str, Any] | None = read_json(file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelConfigError(f"{file} is not an index: it has no weight_map")
    return {name: file.parent / str(part) for name, part in weight_map.items()}
