"""Families in a size for tests: made by transformers, kept for a session, spoilt on purpose."""

import dataclasses
import json
import random
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace
from packaging.version import Version
from safetensors.torch import load_file, save_file

from tests.workers.checkpoints import save_randomly
from workers.contract.checkpoint.architectures import FAMILIES, Family
from workers.contract.checkpoint.shape_keys import ShapeKeys
from workers.contract.model_config import ModelShape

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Spoilt:
    """Faults in a copy of a checkpoint, which a comparison must notice.

    `config` are keys of config.json, `family` fields of `ModelShape.family`. `tensors` are found by
    regular expressions in their names, and filled with a number or changed by a function.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, float | Change] = field(default_factory=dict)
    family: Mapping[str, Any] = field(default_factory=dict)


def keys(**config: Any) -> Spoilt:
    return Spoilt(config=config)


def weights(pattern: str, wrong: float | Change) -> Spoilt:
    return Spoilt(tensors={pattern: wrong})


def fields(**family: Any) -> Spoilt:
    return Spoilt(family=family)


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """A model of a family.

    architecture  the name of its class in transformers
    config        keys of its configuration
    edges         lengths in tokens at which something changes, such as a window's
    spoilt        by feature
    since         the first release of transformers that obeys the whole configuration
    """

    architecture: str
    config: Mapping[str, Any]
    edges: tuple[int, ...] = ()
    spoilt: Mapping[str, Spoilt] = field(default_factory=dict)
    since: str = "5.17"

    def texts(self, *lengths: int, first: int) -> list[list[int]]:
        """Texts of these lengths, and of those about each edge, of tokens from `first` on."""
        draw = random.Random(1)
        about = [edge + by for edge in self.edges for by in (-1, 0, 1)]
        text = self.config.get("text_config", self.config)
        tokens = range(first, text["vocab_size"])
        return [draw.choices(tokens, k=length) for length in (*lengths, *about)]

    def save(self, folder: Path) -> Any:
        """Write it with random weights, norms and biases too, and return it."""
        if Version(transformers.__version__) < Version(self.since):
            pytest.skip(f"transformers obeys the whole configuration since {self.since}")
        torch.manual_seed(7)
        model_class: Any = getattr(transformers, self.architecture)
        # The class of a configuration writes into the dictionaries that it gets.
        model = model_class(model_class.config_class(**deepcopy(dict(self.config)))).eval()
        # The default of transformers 5.17 leaves Gemma 2's softcap out.
        model.set_attn_implementation("eager")
        return save_randomly(model, folder)


class TinyModels:
    """Each model's folder and transformers' own model, made once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[int, tuple[Path, Any]] = {}

    def __call__(self, tiny: TinyModel) -> tuple[Path, Any]:
        if id(tiny) not in self._made:
            folder = self._root / f"{len(self._made)}-{tiny.architecture}"
            self._made[id(tiny)] = folder, tiny.save(folder)
        return self._made[id(tiny)]

    def spoil(
        self, tiny: TinyModel, spoilt: Spoilt, copy: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Write a wrong copy of `tiny` to the folder `copy`, and have its family read wrong fields
        for the test. Everything named must be there, and must have been different."""
        if spoilt.family:
            wrong_family = _with_fields(FAMILIES[tiny.architecture], spoilt.family)
            monkeypatch.setitem(FAMILIES, tiny.architecture, wrong_family)
        folder, _ = self(tiny)
        right = json.loads((folder / "config.json").read_text())
        assert all(value != right.get(key) for key, value in spoilt.config.items())
        (copy / "config.json").write_text(json.dumps(right | spoilt.config))
        tensors = load_file(folder / "model.safetensors")
        for pattern, wrong in spoilt.tensors.items():
            names = [name for name in tensors if re.search(pattern, name)]
            assert names, f"no tensor is called {pattern}"
            for name in names:
                own = tensors[name]
                tensors[name] = wrong(own) if callable(wrong) else torch.full_like(own, wrong)
        save_file(tensors, copy / "model.safetensors")


def move_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.roll(1, dims=0)


def swap_halves(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat(tensor.chunk(2)[::-1])


def _with_fields(family: Family, fields: Mapping[str, Any]) -> Family:
    """`family`, with a reader that says `fields` of every model."""

    def read_shape(keys: ShapeKeys) -> ModelShape:
        shape = family.read_shape(keys)
        assert all(getattr(shape.family, name) != value for name, value in fields.items())
        return replace(shape, family=replace(shape.family, **fields))

    return dataclasses.replace(family, read_shape=read_shape)
