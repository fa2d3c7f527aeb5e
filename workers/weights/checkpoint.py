"""The safetensors files of a checkpoint folder, read tensor by tensor."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self, cast

import torch
from safetensors import SafetensorError, safe_open

from workers.contract.model_config import ModelConfigError, read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class CheckpointError(ValueError):
    """Weights are missing, unreadable or do not fit the model; the message names file or tensor."""


class _TensorFile(Protocol):
    """The type of `safe_open`'s result, which safetensors does not declare."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def keys(self) -> list[str]: ...

    def get_tensor(self, name: str) -> torch.Tensor: ...


class Checkpoint:
    """The tensors of a folder: those of `model.safetensors`, or of the files that its index lists.

    `canonical_name` maps the checkpoint's tensor names to the model's. If several map to one name,
    the tensor that already has that name is used. Raises CheckpointError if no weights are found,
    or if a file of the index is missing.
    """

    def __init__(self, folder: Path, canonical_name: Callable[[str], str]) -> None:
        self._folder = folder
        files = _single_file(folder) if (folder / SINGLE_FILE).exists() else _indexed_files(folder)
        self._names = {name: canonical_name(name) for name in files}
        names = sorted(files, key=lambda name: self._names[name] == name)
        self._locations = {self._names[name]: (files[name], name) for name in names}

    def check_unread(self, read: Set[str], unused: re.Pattern[str]) -> None:
        """Raises CheckpointError for a tensor that no stage reads, and names it.

        `read` holds the canonical names that any stage reads. Names that `unused` matches may
        remain unread.
        """
        taken = {self._locations[name][1] for name in read if name in self._locations}
        left = sorted(
            stored
            for stored, name in self._names.items()
            if stored not in taken and not unused.fullmatch(name)
        )
        if left:
            others = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
            raise CheckpointError(
                f"{self._folder} holds {left[0]}{others}, which the model that its config.json "
                "describes does not read"
            )

    def check_copies(self, copies: Mapping[str, str]) -> None:
        """Raises CheckpointError if a tensor differs from the one it should be a copy of, because
        either may be meant. `copies` maps a copy's canonical name to the name that is read."""
        for copy, original in copies.items():
            if copy in self._locations and not self._get(copy).equal(self._get(original)):
                raise CheckpointError(
                    f"{self._folder}: config.json ties {copy} to {original}, but the two differ"
                )

    def read(
        self, targets: Mapping[str, torch.Tensor], read_one: Callable[[torch.Tensor], None]
    ) -> None:
        """Copy each named tensor into its target, converting it to the target's dtype and device.

        Opens only the files that hold one of them. `read_one` is called with each filled target.
        Raises CheckpointError if a tensor is missing or does not fit.
        """
        for file, names in self._by_file(targets).items():
            with _opened(file) as tensors:
                for name, stored_name in names:
                    stored = tensors.get_tensor(stored_name)
                    _check_fit(file, stored_name, stored, targets[name])
                    targets[name].copy_(stored)
                    read_one(targets[name])

    def _get(self, name: str) -> torch.Tensor:
        ((file, ((_, stored_name),)),) = self._by_file([name]).items()
        with _opened(file) as tensors:
            return tensors.get_tensor(stored_name)

    def _by_file(self, names: Collection[str]) -> dict[Path, list[tuple[str, str]]]:
        missing = [name for name in names if name not in self._locations]
        if missing:
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise CheckpointError(f"{self._folder} has no tensor {missing[0]}{others}")
        by_file: defaultdict[Path, list[tuple[str, str]]] = defaultdict(list)
        for name in names:
            file, stored_name = self._locations[name]
            by_file[file].append((name, stored_name))
        return by_file


def _single_file(folder: Path) -> dict[str, Path]:
    file = folder / SINGLE_FILE
    with _opened(file) as tensors:
        return dict.fromkeys(tensors.keys(), file)


def _indexed_files(folder: Path) -> dict[str, Path]:
    if not (folder / INDEX_FILE).exists():
        raise CheckpointError(_nothing_found(folder))
    try:
        index = read_json(folder / INDEX_FILE)
    except ModelConfigError as error:
        raise CheckpointError(str(error)) from None
    weight_map: dict[str, Any] | None = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{folder / INDEX_FILE} has no weight_map")
    files = {str(name): folder / str(file) for name, file in weight_map.items()}
    for file in dict.fromkeys(files.values()):
        if not file.exists():
            raise CheckpointError(f"{file.name}, listed in {INDEX_FILE}, is missing from {folder}")
    return files


def _nothing_found(folder: Path) -> str:
    message = f"{SINGLE_FILE} is missing from {folder}"
    if any(folder.glob("pytorch_model*.bin")):
        message += ": it holds pytorch_model.bin, but only safetensors are read"
    return message


@contextmanager
def _opened(file: Path) -> Generator[_TensorFile]:
    try:
        with cast(_TensorFile, safe_open(file, framework="pt")) as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None


def _check_fit(file: Path, name: str, stored: torch.Tensor, target: torch.Tensor) -> None:
    if stored.shape != target.shape:
        raise CheckpointError(
            f"{name} in {file} has shape {list(stored.shape)}, the model needs {list(target.shape)}"
        )
    if stored.dtype not in _FLOATS:
        raise CheckpointError(f"{name} in {file} is {stored.dtype}, which is not supported")
