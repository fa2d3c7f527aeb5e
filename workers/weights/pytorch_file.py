"""Files that `torch.save` wrote: a pickle, of which nothing but tensors is accepted.

Since torch 1.6 they are zip archives, whose tensors are mapped into memory; older ones are read
whole.
"""

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from workers.weights.tensor_file import CheckpointError, TensorFile

_ZIP = b"PK\x03\x04"
_CAUSE = re.compile(r"WeightsUnpickler error: (.+)")


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


@contextmanager
def open_pytorch(file: Path) -> Generator[TensorFile]:
    """The tensors of a file. Raises CheckpointError if it cannot be read or holds anything else."""
    yield _LoadedTensors(file, _only_tensors(file, _load(file)))


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
