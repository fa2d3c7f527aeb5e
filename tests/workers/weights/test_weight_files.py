"""Which files are read, in which format, and under which names."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.checkpoints import (
    load_share,
    save_llama,
    stage_weights,
    with_execution,
    worker_config,
)
from tests.workers.weights.test_loader import refusal
from workers.contract.config import WorkerConfig
from workers.weights import loader
from workers.weights.checkpoint import CheckpointError, open_tensors

FILE, PICKLE = "model.safetensors", "pytorch_model.bin"
NORM = "model.layers.1.input_layernorm.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Without weights."""
    save_llama(tmp_path)
    (tmp_path / FILE).rename(tmp_path / "stored")
    return tmp_path


@pytest.fixture
def tensors(folder: Path) -> Tensors:
    return load_file(folder / "stored")


def write_shards(folder: Path, tensors: Tensors, single: str) -> list[Path]:
    """Two files and their index, named as `single` is."""
    stem, ending = single.split(".")
    files = [folder / f"{stem}-0000{n}-of-00002.{ending}" for n in (1, 2)]
    names = sorted(tensors)
    parts = [{name: tensors[name] for name in names[start::2]} for start in (0, 1)]
    for file, part in zip(files, parts, strict=True):
        save_file(part, file) if ending == "safetensors" else torch.save(part, file)
    index = {name: file.name for file, part in zip(files, parts, strict=True) for name in part}
    (folder / f"{single}.index.json").write_text(json.dumps({"weight_map": index}))
    return files


def loaded(config: WorkerConfig) -> Tensors:
    """A stage's weights, by the model's own names."""
    load_share(config)
    weights = stage_weights(config)
    loader.open_checkpoint(config.execution).read(weights, {})
    return weights


def assert_loads(folder: Path, expected: Tensors) -> None:
    for stage in range(2):
        for name, weight in loaded(worker_config(folder, stage=stage, num_stages=2)).items():
            assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_tensors_parameters_and_views(
    folder: Path, tensors: Tensors, zipped: bool
) -> None:
    parameters = [name for name in tensors if "mlp" in name]
    stored = tensors | {name: torch.nn.Parameter(tensors[name]) for name in parameters}
    stored[NORM] = torch.stack([tensors[NORM], tensors[NORM] + 1], dim=1)[:, 0]
    torch.save(stored, folder / PICKLE, _use_new_zipfile_serialization=zipped)
    assert_loads(folder, tensors)


def write(folder: Path, tensors: Tensors, name: str, form: str) -> None:
    """A set of weights named as `name` is: one file, shards, or the first of two shards."""
    if form == "one":
        save_file(tensors, folder / name) if name == FILE else torch.save(tensors, folder / name)
        return
    _, second = write_shards(folder, tensors, name)
    if form == "first":
        second.unlink()


@pytest.mark.parametrize(
    ("read", "ignored"),
    [
        ((FILE, "shards"), (FILE, "one")),
        ((FILE, "one"), (PICKLE, "one")),
        ((FILE, "one"), (PICKLE, "shards")),
        ((PICKLE, "one"), (FILE, "first")),
        ((PICKLE, "shards"), (FILE, "first")),
    ],
)
def test_which_of_two_sets_is_read(
    folder: Path, tensors: Tensors, read: tuple[str, str], ignored: tuple[str, str]
) -> None:
    write(folder, {name: weight + 1 for name, weight in tensors.items()}, *ignored)
    write(folder, tensors, *read)
    assert_loads(folder, tensors)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({NORM: "text"}, f"holds {NORM}, a str; only dense tensors are read"),
        ({NORM: {"nested": torch.ones(2)}}, f"holds {NORM}, a dict"),
        ({NORM: torch.ones(2).to_sparse()}, f"holds {NORM}, a Tensor; only dense"),
        ([torch.ones(2)], "holds a list, not tensors by name"),
        ({"model": torch.nn.Linear(2, 2)}, "torch.nn.modules.linear.Linear"),
        ({"path": Path("/")}, "Unsupported global: GLOBAL pathlib"),
        ({("a", 1): torch.ones(2)}, "holds a tuple as the name of a tensor"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # some releases of torch warn once
@pytest.mark.parametrize("zipped", [True, False])
def test_anything_but_tensors_is_refused(folder: Path, value: Any, said: str, zipped: bool) -> None:
    torch.save(value, folder / PICKLE, _use_new_zipfile_serialization=zipped)
    message = refusal(worker_config(folder))
    assert message.startswith(str(folder / PICKLE))
    assert said in message


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_cut_anywhere(tmp_path: Path, zipped: bool) -> None:
    file = tmp_path / PICKLE
    stored = {"weight": torch.ones(2), "bias": torch.nn.Parameter(torch.ones(2))}
    torch.save(stored, file, _use_new_zipfile_serialization=zipped)
    whole = file.read_bytes()
    for kept in (*range(0, len(whole), 7), len(whole) - 1):
        file.write_bytes(whole[:kept])
        with pytest.raises(CheckpointError) as error, open_tensors(file, "pytorch"):
            pass
        assert re.fullmatch(f"{file} cannot be read: .*\\S.*", str(error.value)), kept


def test_an_index_of_pickles_that_names_the_wrong_file(folder: Path, tensors: Tensors) -> None:
    first, _ = write_shards(folder, tensors, PICKLE)
    torch.save({}, first)
    assert f"{first} cannot be read: it does not hold " in refusal(worker_config(folder))
    torch.save(tensors | {"extra": torch.ones(1)}, first)
    message = refusal(worker_config(folder))
    assert message == f"{first} holds extra, which is not in its index"


def test_a_decoder_saved_without_its_head_has_names_without_prefix(
    folder: Path, tensors: Tensors
) -> None:
    stored = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    assert stored.keys() != tensors.keys()
    save_file(stored, folder / FILE)
    assert_loads(folder, tensors)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", "model."])
def test_the_language_model_of_a_larger_one(folder: Path, tensors: Tensors, prefix: str) -> None:
    """transformers 4 wrote `language_model.model.norm`, transformers 5 `model.language_model.norm`
    and `lm_head`."""
    head = "language_model.lm_head" if prefix.startswith("language") else "lm_head"
    stored = {
        name.replace("model.", prefix, 1).replace("lm_head", head): tensor
        for name, tensor in tensors.items()
    }
    beside = ["vision_tower.encoder.layers.0.weight", "model.multi_modal_projector.norm.weight"]
    save_file(stored | {name: torch.ones(2) for name in beside}, folder / FILE)
    plain = worker_config(folder)
    model = msgspec.structs.replace(plain.execution.model, wrapped=True)
    weights = loaded(with_execution(plain, model=model))
    assert weights.keys() == tensors.keys()
    assert all(torch.equal(weight, tensors[name]) for name, weight in weights.items())
    assert "does not read" in refusal(plain)
