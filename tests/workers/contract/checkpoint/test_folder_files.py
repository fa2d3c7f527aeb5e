"""The files of a checkpoint's folder: which are read, and the line that refuses all others, or the
format that they are in."""

import os
import re
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.models.model_source import ModelSourceError, model_folder
from tests.server.checkpoint_folders import LLAMA, write_json
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.checkpoint.folder_files import (
    CONFIG_BYTES,
    UnsafeFileError,
    decoded,
    find_file,
    find_weights,
    optional,
    read_json,
    read_text,
)
from workers.contract.model_config import ModelConfigError

OBJECT = '{"a": 1}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint's, with an object beside it that is none of its files."""
    (tmp_path / "outside.json").write_text(OBJECT)
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def bind(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(file))


def enlarge(file: Path, size: int = 1 << 30) -> None:
    """A file that takes no room on the disk."""
    file.touch()
    os.truncate(file, size)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (os.mkfifo, "is not a regular file"),
        (bind, "is not a regular file"),
        (Path.mkdir, "is not a regular file"),
        (lambda file: file.symlink_to("/dev/zero"), "leads to /dev/zero, out of the checkpoint's"),
        (lambda file: file.symlink_to("../outside.json"), "out of the checkpoint's folder: copy"),
        (lambda file: file.symlink_to("../nowhere.json"), "out of the checkpoint's folder"),
        (lambda file: file.symlink_to(file), "cannot be read"),
        (enlarge, "has 1073741824 bytes; of such a file at most 16777216 are read"),
    ],
    ids=["fifo", "socket", "folder", "device", "link", "dangling link", "circle", "large"],
)
def test_a_file_that_may_not_be_read(
    folder: Path, write: Callable[[Path], None], reason: str
) -> None:
    file = folder / "config.json"
    write(file)
    tracemalloc.start()
    for read in (read_json, read_text):
        with pytest.raises(UnsafeFileError, match=reason) as raised:
            read(folder, "config.json")
        assert str(file) in str(raised.value)
    with pytest.raises(UnsafeFileError, match=reason):
        optional(folder, "config.json", dict[str, Any])
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    "name", ["../outside.json", "/etc/passwd", "sub/../../outside.json", "link/outside.json"]
)
def test_a_name_that_leads_out_of_the_folder(folder: Path, name: str) -> None:
    (folder / "sub").mkdir()
    (folder / "link").symlink_to("..")
    for read in (find_file, read_json):
        with pytest.raises(UnsafeFileError, match="out of the checkpoint's folder"):
            read(folder, name)


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000])
def test_a_name_that_no_file_has(folder: Path, name: str) -> None:
    with pytest.raises(UnsafeFileError, match="cannot be read"):
        find_file(folder, name)


def test_what_is_missing(folder: Path) -> None:
    (folder / "link.json").symlink_to("none.json")
    (folder / "config.json").write_text(OBJECT)
    for name in ("none.json", "none/config.json", "config.json/none", "link.json"):
        assert find_file(folder, name) is None
        assert optional(folder, name, dict[str, Any]) is None
    with pytest.raises(ModelConfigError, match=r"none\.json is missing from .*/model$"):
        read_json(folder, "none.json")


def test_links_within_the_folder(folder: Path, tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap. The folder itself may be a link, too."""
    (folder / "..2026").mkdir()
    (folder / "..2026" / "config.json").write_text(OBJECT)
    (folder / "..data").symlink_to("..2026")
    (folder / "config.json").symlink_to("..data/config.json")
    (folder / "hard.json").hardlink_to(tmp_path / "outside.json")
    (tmp_path / "link").symlink_to("model")
    for each in (folder, tmp_path / "link"):
        assert read_json(each, "config.json") == read_json(each, "hard.json") == {"a": 1}


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_the_hubs_cache(tmp_path: Path, shared: bool, linked: bool) -> None:
    """Blobs are the model's own, or links into a store of all models. The cache may be a link."""
    hub = tmp_path / "hub"
    model, other = hub / "models--a--b", hub / "models--c--d"
    folder, store = model / "snapshots" / "0123", hub / "blobs" / "ab"
    for each in (folder / "1_Pooling", model / "blobs", store, other / "blobs"):
        each.mkdir(parents=True)
    if shared:
        (store / "abcd").write_text(OBJECT)
        (model / "blobs" / "4567").symlink_to("../../blobs/ab/abcd")
    else:
        (model / "blobs" / "4567").write_text(OBJECT)
    (folder / "config.json").symlink_to("../../blobs/4567")
    (folder / "1_Pooling" / "config.json").symlink_to("../../../blobs/4567")
    (other / "blobs" / "89ab").write_text(OBJECT)
    (folder / "other.json").symlink_to("../../../models--c--d/blobs/89ab")
    if linked:
        (tmp_path / "link").symlink_to("hub")
        folder = tmp_path / "link" / folder.relative_to(hub)
    assert read_json(folder, "config.json") == {"a": 1}
    assert read_json(folder, "1_Pooling/config.json") == {"a": 1}
    with pytest.raises(UnsafeFileError, match="out of the checkpoint's folder"):
        read_json(folder, "other.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": ' + "[" * 64 + "]" * 64 + "}", "more than 64 objects and lists within each other"),
        ("[" * 10**6, "cannot be read"),
        ('{"a":' * 10**5 + "1" + "}" * 10**5, "cannot be read"),
        ('{"a": Infinity, "b": "\\ud800"}', "cannot be read"),
        ('{"a": ' + "9" * 5000 + "}", "cannot be read"),
        ("[1]", "Expected `object`"),
    ],
    ids=["levels", "open lists", "objects", "half a character", "digits", "list"],
)
def test_json_that_is_refused(folder: Path, text: str, reason: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelConfigError, match=reason):
        read_json(folder, "config.json")


def test_json_that_is_read(folder: Path) -> None:
    (folder / "config.json").write_text('{"a": ' + "[" * 63 + "]" * 63 + "}")
    assert list(read_json(folder, "config.json")) == ["a"]
    (folder / "config.json").write_text('{"a": Infinity}')
    assert decoded(folder, "config.json", dict[str, float]) == {"a": float("inf")}
    (folder / "config.json").write_text('"' + "a" * (CONFIG_BYTES - 2) + '"')
    assert len(decoded(folder, "config.json", str)) == CONFIG_BYTES - 2


def test_a_text_that_is_not_utf8(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelConfigError, match=r"chat_template\.jinja cannot be read"):
        read_text(folder, "chat_template.jinja")


def refusal(folder: Path) -> str:
    with pytest.raises(ModelConfigError) as error:
        read_model_config(folder)
    return str(error.value)


def test_an_adapter(tmp_path: Path) -> None:
    write_json(tmp_path / "adapter_config.json", {"base_model_name_or_path": "Qwen/Qwen3-8B"})
    (tmp_path / "adapter_model.safetensors").touch()
    assert refusal(tmp_path) == (
        f"{tmp_path} is an adapter of Qwen/Qwen3-8B, not a model: merge it into the weights"
    )
    write_json(tmp_path / "adapter_config.json", {})
    assert f"{tmp_path} is an adapter, not a model" in refusal(tmp_path)


def test_gguf_files(tmp_path: Path) -> None:
    """In the folder, or in folders of their own."""
    (tmp_path / "Q4_K_M").mkdir()
    inner, file = tmp_path / "Q4_K_M/llama-00001-of-00002.gguf", tmp_path / "llama-q4.gguf"
    inner.touch()
    assert refusal(tmp_path).startswith(f"{tmp_path} holds GGUF files; ")
    inner.unlink()
    file.write_bytes(b"GGUF")
    assert refusal(tmp_path).startswith(f"{tmp_path} holds GGUF files; GGUF is not read: serve the")
    with pytest.raises(ModelSourceError, match=re.escape(f"{file} is a GGUF file; GGUF is not")):
        model_folder(str(file), "auto")
    write_json(tmp_path / "config.json", LLAMA)
    read_model_config(tmp_path)
    with pytest.raises(ModelConfigError, match="holds GGUF files"):
        find_weights(tmp_path)


def test_mistrals_own_format(tmp_path: Path) -> None:
    write_json(tmp_path / "params.json", {"dim": 4096})
    assert refusal(tmp_path) == f"config.json is missing from {tmp_path}"
    (tmp_path / "consolidated.safetensors").touch()
    assert refusal(tmp_path).startswith(f"{tmp_path} is in Mistral's own format (params.json, ")


def test_beside_a_checkpoint_they_are_no_matter(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", LLAMA)
    for name in ("model.safetensors", "consolidated.safetensors", "params.json", "a.gguf"):
        (tmp_path / name).touch()
    read_model_config(tmp_path)
    assert [file.name for file in find_weights(tmp_path).files] == ["model.safetensors"]
