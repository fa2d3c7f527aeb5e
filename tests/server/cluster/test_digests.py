"""Two folders have the same model, or the first file in which they differ is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from server.cluster.digests import first_difference, model_digests
from server.demo import GENERATOR_NAME, demo_models
from workers.contract.model_config import ModelConfigError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(demo_models()[GENERATOR_NAME], tmp_path / "model"))


def with_index(folder: Path, last_file: str = "a.safetensors") -> Path:
    (folder / WEIGHTS).rename(folder / "a.safetensors")
    shutil.copy(folder / "a.safetensors", folder / "b.safetensors")
    weight_map = {"first": "a.safetensors", "last": last_file}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def spoil_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 2.0}))


def spoil_header(folder: Path) -> None:
    contents = (folder / WEIGHTS).read_bytes()
    at = contents.index(b"F16")
    (folder / WEIGHTS).write_bytes(contents[:at] + b"I16" + contents[at + 3 :])


def spoil_weights(folder: Path) -> None:
    """Contents are not compared: reading them takes as long as loading them."""
    contents = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(contents[:-1] + bytes([contents[-1] ^ 1]))


@pytest.mark.parametrize(
    ("spoil", "difference"),
    [
        (lambda _: None, None),
        (spoil_weights, None),
        (spoil_config, "config.json"),
        (spoil_header, WEIGHTS),
        (with_index, WEIGHTS),
    ],
)
def test_the_first_difference(
    folder: Path, spoil: Callable[[Path], object], difference: str | None
) -> None:
    before = model_digests(folder, "auto")
    spoil(folder)
    assert first_difference(model_digests(folder, "auto"), before) == difference


def test_another_index(folder: Path) -> None:
    before = model_digests(with_index(folder), "auto")
    (folder / INDEX).write_text((folder / INDEX).read_text().replace('"a.s', '"b.s', 1))
    difference = first_difference(model_digests(folder, "auto"), before)
    assert difference == "the index of its weights"


def test_dummy_weights_need_no_files(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    assert list(model_digests(folder, "dummy")) == ["config.json"]
    with pytest.raises(ModelConfigError, match=WEIGHTS):
        model_digests(folder, "auto")


def test_weights_that_are_cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"1234")
    with pytest.raises(ModelConfigError, match=f"{WEIGHTS} cannot be read"):
        model_digests(folder, "auto")
