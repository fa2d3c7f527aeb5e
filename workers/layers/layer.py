"""The base class of a model and of its parts, and where their weights are placed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, cast

import torch

from workers.contract.config import CacheDtype, WorkerConfig
from workers.contract.quantization import Quantization
from workers.device.choices import Choices
from workers.kernels.experts.kernels import ExpertKernels, expert_kernels
from workers.kernels.linear.fused import FusedKernels, fused_kernels

TORCH_DTYPES: dict[CacheDtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a checkpoint's tensor that are `kept`, in their order, of `total` rows."""

    kept: tuple[int, ...]
    total: int


class Layer:
    """A model or a part of one, created with uninitialised weights, filled through `weights`,
    adjusted, packed, then called."""

    def parts(self) -> "Iterator[Layer]":
        """The layers among the attributes, alone, in lists or in dicts, each once."""
        for value in vars(self).values():
            each = cast("list[Any]", value) if isinstance(value, list) else [value]
            if isinstance(value, dict):
                each = [*cast("dict[Any, Any]", value).values()]
            yield from dict.fromkeys(part for part in each if isinstance(part, Layer))

    def weights(self) -> dict[str, torch.Tensor]:
        """Canonical checkpoint name -> the tensor to fill. Valid only until `pack`."""
        return {name: weight for part in self.parts() for name, weight in part.weights().items()}

    def rows(self) -> dict[str, Rows]:
        """Canonical name -> rows, for each weight that is some rows of a checkpoint's tensor."""
        return {name: rows for part in self.parts() for name, rows in part.rows().items()}

    def added_bytes(self, fp8_item_bytes: int) -> int:
        """Bytes that `pack` adds to the weights, where one in FP8 takes so many of them."""
        return sum(part.added_bytes(fp8_item_bytes) for part in self.parts())

    def adjust(self) -> None:
        """Change the filled weights, in place, to those that are computed with."""
        for part in self.parts():
            part.adjust()

    def pack(self) -> None:
        """Convert the weights to the layout that is read fastest. They stay as they are: another
        process may pack them again."""
        for part in self.parts():
            part.pack()


class Chain(Layer):
    """Layers and functions, applied to the rows one after another."""

    def __init__(self, *links: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._links = list(links)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        for link in self._links:
            rows = link(rows)
        return rows


class Memory(Protocol):
    """Makes, or has, a weight of this shape whose numbers are arbitrary or filled already."""

    def __call__(
        self, shape: tuple[int, ...], /, *, device: torch.device, dtype: torch.dtype
    ) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Placement:
    """The device and element type of a stage's weights, and what was chosen for the device. With a
    `quantization`, or as `transposed` in the checkpoint, they are those of its layers, of which
    some may have `other_names` there. Weights are in `memory`."""

    device: torch.device
    dtype: torch.dtype
    choices: Choices = field(default_factory=Choices)
    quantization: Quantization | None = None
    transposed: bool = False
    other_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    memory: Memory = torch.empty

    @classmethod
    def of(cls, worker: WorkerConfig) -> Self:
        execution = worker.execution
        choices = Choices(execution.choices_folder, execution.start)
        return cls(torch.device(worker.local_device), TORCH_DTYPES[execution.dtype], choices)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A weight of `shape` that is to be filled, of another element type if given."""
        return self.memory(shape, device=self.device, dtype=dtype or self.dtype)

    @property
    def kernels(self) -> FusedKernels | None:
        """The fused kernels of this device, or None."""
        return fused_kernels(self.device, self.choices)

    @property
    def expert_kernels(self) -> ExpertKernels | None:
        """The kernels of experts on this device, or None."""
        return expert_kernels(self.device, self.choices)


class Vector(Layer):
    """Numbers of a checkpoint, float32[size]."""

    def __init__(self, name: str, size: int, placement: Placement) -> None:
        self._name = name
        self.values = placement.empty(size, dtype=torch.float32)

    def weights(self) -> dict[str, torch.Tensor]:
        return {self._name: self.values}
