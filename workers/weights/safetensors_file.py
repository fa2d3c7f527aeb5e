"""Files in the format of safetensors: a head of names, types and shapes, and the bytes."""

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import cast

from safetensors import SafetensorError, safe_open

from workers.weights.tensor_file import CheckpointError, TensorFile

_Opened = AbstractContextManager[TensorFile]
"""The type of `safe_open`'s result, which safetensors does not declare."""


@contextmanager
def open_safetensors(file: Path) -> Generator[TensorFile]:
    """The file, mapped into memory. Raises CheckpointError, also for what is read from it."""
    try:
        with cast(_Opened, safe_open(file, framework="pt")) as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None
