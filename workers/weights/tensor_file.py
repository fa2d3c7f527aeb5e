"""Files of named tensors, in each format that is read.

Safetensors are a head of names, types and shapes, and the bytes. What `torch.save` wrote is a
pickle, of which nothing but tensors is accepted: since torch 1.6 a zip archive, whose tensors are
mapped into memory; older ones are read whole.
"""

import re
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open

from workers.contract.checkpoint.folder_files import WeightFormat

_ZIP = b"PK\x03\x04"
_CAUSE = re.compile(r"WeightsUnpickler error: (.+)")


class CheckpointError(ValueError):
    """Weights are missing, unreadable or do not fit the model; the message names file or tensor."""


class TensorFile(Protocol):
    """An open file of named tensors, which stay on the CPU and are read when asked for."""

    def keys(self) -> Iterable[str]:
        """The tensors' names."""
        ...

    def get_tensor(self, name: str) -> torch.Tensor:
        """The tensor of that name. Raises CheckpointError if there is none."""
        ...


@contextmanager
def open_tensors(file: Path, weight_format: WeightFormat) -> Generator[TensorFile]:
    """The tensors of a file. Raises CheckpointError if it cannot be read or holds anything else,
    also for what is read from it."""
    if weight_format == "pytorch":
        yield _LoadedTensors(file, _only_tensors(file, _load(file)))
        return
    try:
        # safetensors does not declare the type of the result.
        opened = cast("AbstractContextManager[TensorFile]", safe_open(file, framework="pt"))
        with opened as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None


class _LoadedTensors:
    """A dictionary of tensors as a TensorFile."""

    def __init__(self, file: Path, tensors: dict[str, torch.Tensor]) -> None:
        self._file, self._tensors = file, tensors

    def keys(self) -> Iterable[str]:
        return self._tensors.keys()

    def get_tensor(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            raise CheckpointError(f"{self._file} cannot be read: it does not hold {name}")
        return self._tensors[name]


def _load(file: Path) -> Any:
    """No code runs: `weights_only` builds nothing but tensors and plain containers of them."""
    try:
        with file.open("rb") as start:
            mapped = start.read(len(_ZIP)) == _ZIP
        return torch.load(file, weights_only=True, mmap=mapped, map_location="cpu")
    except Exception as error:  # a pickle is a program, and a spoilt one may raise anything
        found = _CAUSE.search(str(error))
        lines = [found[1]] if found else str(error).split("\n")
        reason = next(filter(str.strip, lines), "it is truncated")
        raise CheckpointError(f"{file} cannot be read: {reason}") from None


def _only_tensors(file: Path, loaded: Any) -> dict[str, torch.Tensor]:
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{file} holds a {type(loaded).__name__}, not tensors by name")
    tensors: dict[str, torch.Tensor] = {}
    for name, value in cast(dict[Any, Any], loaded).items():
        if not isinstance(name, str):
            raise CheckpointError(f"{file} holds a {type(name).__name__} as the name of a tensor")
        if not (isinstance(value, torch.Tensor) and value.layout == torch.strided):
            raise CheckpointError(
                f"{file} holds {name}, a {type(value).__name__}; only dense tensors are read"
            )
        tensors[name] = value.detach()
    return tensors
