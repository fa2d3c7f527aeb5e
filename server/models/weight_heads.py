"""What the heads of a checkpoint's weight files say of its tensors; no weight is read."""

import zipfile
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open

from server.models.setup_error import ModelSourceError
from workers.contract.checkpoint.folder_files import WeightFiles, find_weights
from workers.contract.model_config import ModelConfigError

_LEGACY_PICKLE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How a file begins that torch.save wrote before torch 1.6: a pickle of this magic number."""


@dataclass(frozen=True, slots=True)
class WeightHeads:
    """Elements of each tensor by its name in the files (safetensors), or else only `stored_bytes`,
    those of all tensors together: the names in a pickle are found where it is loaded."""

    elements: dict[str, int]
    stored_bytes: int = 0


def read_heads(folder: Path, module: str = "") -> WeightHeads:
    """The heads of the weights of a model, or of one of its modules. Raises ModelSourceError."""
    try:
        weights = find_weights(folder, module)
    except ModelConfigError as error:
        raise ModelSourceError(str(error)) from None
    if weights.format == "pytorch":
        return WeightHeads({}, sum(_archive_bytes(file) for file in weights.files))
    elements: dict[str, int] = {}
    for file in weights.files:
        elements |= _elements(weights, file)
    return WeightHeads(elements)


def _elements(weights: WeightFiles, file: Path) -> dict[str, int]:
    """Also checks that the file is as long as its head says."""
    try:
        with cast(Any, safe_open(file, framework="np")) as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelSourceError(f"{file} cannot be read: {error}") from None
    if weights.index is not None and (others := sorted(shapes.keys() - weights.index.keys())):
        raise ModelSourceError(f"{file} holds {others[0]}, which is not in its index")
    return {name: prod(shape) for name, shape in shapes.items()}


def _archive_bytes(file: Path) -> int:
    """What the tensors take in a zip archive that torch.save wrote; the size of a legacy file."""
    try:
        with file.open("rb") as start:
            if start.read(len(_LEGACY_PICKLE)) == _LEGACY_PICKLE:
                return file.stat().st_size
        with zipfile.ZipFile(file) as archive:
            return sum(part.file_size for part in archive.infolist() if "/data/" in part.filename)
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelSourceError(f"{file} cannot be read: {error}") from None
