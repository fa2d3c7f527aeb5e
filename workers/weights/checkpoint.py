"""The weights of a checkpoint folder, read tensor by tensor."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from safetensors import SafetensorError, safe_open

from workers.contract.checkpoint.folder_files import WeightFormat, find_weights
from workers.contract.experts import ExpertsConfig
from workers.contract.model_config import ModelConfigError, inner_name, wrapper_names
from workers.contract.quantization import FP4_LARGEST_SCALE
from workers.layers.experts import CORRECTION
from workers.layers.fp8_method import FP8
from workers.layers.layer import Rows
from workers.progress_bar import progress
from workers.weights.stacked import Cut, cuts

_ZIP = b"PK\x03\x04"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INPUT_SCALES = (".input_scale", ".activation_scale")
SCALES = (".weight_scale", ".weight_scale_inv", ".weight_scales", *INPUT_SCALES)
"""Ends of the names of scales, of which the plural is MXFP4's."""
_CAUSE = re.compile(r"WeightsUnpickler error: (.+)")


class CheckpointError(ModelConfigError):
    """Weights are unreadable or do not fit the model. The message names file or tensor."""


class TensorFile(NamedTuple):
    """An open file of tensors, which stay on the CPU and are read by `get`. `get` raises
    CheckpointError for an unknown name or a file that cannot be read."""

    names: Collection[str]
    get: Callable[[str], torch.Tensor]


@contextmanager
def open_tensors(file: Path, weight_format: WeightFormat) -> Generator[TensorFile]:
    """The tensors of a file. Raises CheckpointError if it cannot be read or holds anything else.

    Pickles are zip archives since torch 1.6, mapped into memory. Older ones are read whole.
    """
    if weight_format == "pytorch":
        tensors = _only_tensors(file, _load(file))

        def loaded(name: str) -> torch.Tensor:
            if name not in tensors:
                raise CheckpointError(f"{file} cannot be read: it does not hold {name}")
            return tensors[name]

        yield TensorFile(tensors.keys(), loaded)
        return
    try:
        # safetensors does not declare the type of the result.
        with cast("AbstractContextManager[Any]", safe_open(file, framework="pt")) as opened:
            yield TensorFile(opened.keys(), opened.get_tensor)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from None


def _load(file: Path) -> Any:
    """Load a pickle without running code: `weights_only` builds only tensors and containers."""
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


class Checkpoint:
    """The tensors of the weights that `find_weights` chooses.

    `canonical_name` maps their names to the model's, after `inner_name`. If several map to one, the
    tensor that already has that name is used. `module` is the folder of a module behind the model,
    whose tensors are called `module/name`. One that holds all `experts` of a layer is cut. Raises
    ModelConfigError if no weights are found.
    """

    def __init__(
        self,
        folder: Path,
        canonical_name: Callable[[str], str],
        *,
        wrapped: bool = False,
        module: str = "",
        experts: ExpertsConfig | None = None,
    ) -> None:
        self._folder, self._weights = folder / module, find_weights(folder, module)
        self._wrapped = wrapped
        files = self._weights.index or self._names_of_single_file()
        inner = {name: inner_name(name) if wrapped else name for name in files}
        self._names = {name: canonical_name(own) for name, own in inner.items() if own is not None}
        names = sorted(self._names, key=lambda name: self._names[name] == name)
        self._locations = {self._names[name]: (files[name], name) for name in names}
        self._cuts: dict[str, Cut] = {}
        for name in names:
            own = cuts(self._names[name], experts) if experts else {}
            self._cuts |= own
            self._locations |= dict.fromkeys(own, (files[name], name))

    def other_names(self) -> dict[str, tuple[str, ...]]:
        """The names that layers have here, or in the wrapper, by their canonical ones."""
        others: dict[str, tuple[str, ...]] = {}
        for name, (_, stored) in self._locations.items():
            layer = stored.rpartition(".")[0]
            inner = inner_name(layer) if self._wrapped else None
            others[name.rpartition(".")[0]] = (layer,) if inner is None else wrapper_names(inner)
        return others

    def check_unread(self, read: Set[str], unused: re.Pattern[str]) -> None:
        """Raise CheckpointError for a tensor that no stage reads, unless `unused` matches its
        canonical name. `read` holds the names that any stage reads."""
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
        """Raise CheckpointError if a copy differs from its original: either may be meant. `copies`
        maps a copy's canonical name to its original's."""
        for copy in copies.keys() & self._locations.keys():
            own = self._get(original := copies[copy])
            # As of one type: torch compares no FP8 with another.
            if not self._get(copy).to(own.dtype).equal(own):
                raise CheckpointError(
                    f"{self._folder}: config.json ties {copy} to {original}, but the two differ"
                )

    def read(self, targets: Mapping[str, torch.Tensor], rows: Mapping[str, Rows]) -> None:
        """Copy each named tensor, or those `rows` of it, into its target, converted to the target's
        dtype and device.

        Opens only the files that hold one of them. Raises CheckpointError if a tensor is missing or
        does not fit.
        """
        fitting = self._fitting(targets, rows)
        for name, stored in progress("reading weights", fitting, len(targets)):
            some = rows.get(name)
            targets[name].copy_(stored if some is None else stored[list(some.kept)])

    def check_fit(self, targets: Mapping[str, torch.Tensor], rows: Mapping[str, Rows]) -> None:
        """Raise CheckpointError if a tensor is missing or does not fit. Targets need no memory."""
        for _ in self._fitting(targets, rows):
            pass

    def _fitting(
        self, targets: Mapping[str, torch.Tensor], rows: Mapping[str, Rows]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Each target's name and stored tensor, which is not read yet."""
        for file, names in self._by_file(targets).items():
            with self._open(file) as tensors:
                for name, stored_name in names:
                    stored, target = tensors.get(stored_name), targets[name]
                    scales, cut = name.endswith(SCALES), self._cuts.get(name)
                    dims = target.dim() + (cut is not None)
                    while scales and stored.dim() > dims and stored.shape[-1] == 1:
                        stored = stored.squeeze(-1)
                    if name.endswith(CORRECTION) and stored.shape == (1, *target.shape):
                        stored = stored.squeeze(0)
                    _check_fit(file, stored_name, stored, target, rows.get(name), cut)
                    stored = stored if cut is None else cut.of(stored, target.shape)
                    if scales:
                        _check_scale(file, stored_name, stored.to(target.dtype))
                    yield name, stored

    def _names_of_single_file(self) -> dict[str, Path]:
        (file,) = self._weights.files
        with self._open(file) as tensors:
            return dict.fromkeys(tensors.names, file)

    @contextmanager
    def _open(self, file: Path) -> Generator[TensorFile]:
        with open_tensors(file, self._weights.format) as tensors:
            index = self._weights.index
            if index is not None and (others := sorted(set(tensors.names) - index.keys())):
                raise CheckpointError(f"{file} holds {others[0]}, which is not in its index")
            yield tensors

    def _get(self, name: str) -> torch.Tensor:
        ((file, ((_, stored_name),)),) = self._by_file([name]).items()
        with self._open(file) as tensors:
            return tensors.get(stored_name)

    def _by_file(self, names: Collection[str]) -> dict[Path, list[tuple[str, str]]]:
        missing = [name for name in names if name not in self._locations]
        if missing:
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            lacking = missing[0].rpartition("/")[2]
            raise CheckpointError(f"{self._folder} has no tensor {lacking}{others}")
        by_file: defaultdict[Path, list[tuple[str, str]]] = defaultdict(list)
        for name in names:
            file, stored_name = self._locations[name]
            by_file[file].append((name, stored_name))
        return by_file


def _check_fit(
    file: Path,
    name: str,
    stored: torch.Tensor,
    target: torch.Tensor,
    some: Rows | None,
    cut: Cut | None,
) -> None:
    shape = list(target.shape) if some is None else [some.total, *target.shape[1:]]
    shape = shape if cut is None else cut.whole(target.shape, stored.shape)
    if list(stored.shape) != shape:
        raise CheckpointError(
            f"{name} in {file} has shape {list(stored.shape)}, the model needs {shape}"
        )
    said = {FP8: "FP8", torch.uint8: "MXFP4, in bytes"}.get(target.dtype)
    if stored.dtype not in ((target.dtype,) if said else _FLOATS):
        reason = "which is not supported"
        if said:
            reason = f"and the model's quantization says {said}"
        elif stored.dtype == FP8:
            reason = "which is served only for linear layers that the model's quantization names"
        raise CheckpointError(f"{name} in {file} is {stored.dtype}, {reason}")


def _check_scale(file: Path, name: str, scale: torch.Tensor) -> None:
    """Raise CheckpointError for what is no scale, such as the byte that is NaN in MXFP4."""
    in_bytes = scale.dtype == torch.uint8
    usable = scale <= FP4_LARGEST_SCALE if in_bytes else (scale > 0) & scale.isfinite()
    if not usable.all():
        wrong, kind = scale[~usable].flatten()[0].item(), "a number above 0"
        if in_bytes:
            wrong = "nan" if wrong == 255 else f"2 ** {wrong - 127}"
            kind = f"at most 2 ** {FP4_LARGEST_SCALE - 127}"
        raise CheckpointError(f"{name} in {file} holds {wrong}: a scale is {kind}")
