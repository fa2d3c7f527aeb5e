"""Folders that mean harm: `inspect`, `config --check` and `serve` say one line each, at once."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from server import cli
from tests.server.checkpoint_folders import BERT, LLAMA, write_checkpoint, write_json, write_modules
from tests.server.conftest import Refused
from workers.contract.checkpoint.folder_files import CONFIG_BYTES, INDEX_BYTES, TOKENIZER_BYTES

TEMPLATES = ("chat_template.jinja", "additional_chat_templates/default.jinja")
FILES = """
    config.json generation_config.json tokenizer.json tokenizer_config.json special_tokens_map.json
    added_tokens.json chat_template.json additional_chat_templates/rag.jinja modules.json
    config_sentence_transformers.json sentence_bert_config.json 1_Pooling/config.json
    2_Dense/config.json 2_Dense/model.safetensors 3_Normalize/config.json hf_quant_config.json
    quantize_config.json model.safetensors model.safetensors.index.json
""".split()
TEN_LETTERS = {"type": "Replace", "pattern": {"String": "w"}, "content": "w" * 10}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An embedder with modules, and a template."""
    folder = write_checkpoint(tmp_path / "model", BERT)
    dense = {"in_features": 32, "out_features": 8}
    write_modules(folder, Pooling={"pooling_mode": "mean"}, Dense=dense, Normalize={})
    (folder / "additional_chat_templates").mkdir()
    (folder / "2_Dense" / "model.safetensors").hardlink_to(folder / "model.safetensors")
    return folder


class Penstock:
    """What commands say of a folder."""

    def __init__(self, refused: Refused, capsys: pytest.CaptureFixture[str]) -> None:
        self._refused = refused
        self._capsys = capsys

    def check(self, folder: Path) -> str:
        """The line with which `penstock config --check` refuses it."""
        return self._refused("config", "--check", folder)

    def inspect(self, folder: Path) -> list[str]:
        """The lines in which `penstock inspect` says what is wrong with it."""
        (folder / "model.safetensors").unlink(missing_ok=True)  # comparing weights takes seconds
        assert cli.main(["inspect", str(folder), "--json"]) == 1
        return json.loads(self._capsys.readouterr().out)["refused"]

    def refuses(self, folder: Path, reason: str) -> None:
        """Both say so."""
        assert reason in self.check(folder)
        assert len([line for line in self.inspect(folder) if reason in line]) == 1


@pytest.fixture
def penstock(refused: Refused, capsys: pytest.CaptureFixture[str]) -> Penstock:
    return Penstock(refused, capsys)


def test_the_folder_that_is_spoilt_below(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--check", str(folder)]) == 0
    assert "BertModel" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*FILES, *TEMPLATES])
def test_a_file_that_is_none_or_elsewhere(folder: Path, name: str, penstock: Penstock) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("/dev/zero")
    leads = f"{folder / name} leads to /dev/zero, out of the checkpoint's folder"
    assert leads in penstock.check(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    reason = f"{folder / name} is not a regular file"
    assert reason in penstock.check(folder)
    if name != "model.safetensors":
        assert any(reason in line for line in penstock.inspect(folder))


INDEX, BERT_CONFIG = "model.safetensors.index.json", "sentence_bert_config.json"
SMALL = ("config.json", "chat_template.jinja", "1_Pooling/config.json")
LARGE = {"tokenizer.json": TOKENIZER_BYTES, INDEX: INDEX_BYTES} | dict.fromkeys(SMALL, CONFIG_BYTES)


@pytest.mark.parametrize("name", LARGE)
def test_a_file_that_is_too_large(folder: Path, name: str, penstock: Penstock) -> None:
    (folder / name).touch()
    os.truncate(folder / name, 1 << 30)
    reason = f"{folder / name} has 1073741824 bytes; of such a file at most {LARGE[name]} are read"
    penstock.refuses(folder, reason)


ELSEWHERE = "out of the checkpoint's folder"
IS_NO_TEXT = "index.json cannot be read: Expected `str`"
IS_NO_OBJECT = f"{BERT_CONFIG}: model_args is not valid: Expected `object`"


def modules_in(path: str) -> object:
    kinds = [f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling")]
    return [{"type": kinds[0], "path": ""}, {"type": kinds[1], "path": path}]


def index_of(part: object) -> object:
    return {"weight_map": {"weight": part}}


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        *[("modules.json", modules_in(path), ELSEWHERE) for path in ("../other", "/etc", "link")],
        *[
            (INDEX, index_of(part), ELSEWHERE)
            for part in ("../x.safetensors", "/dev/zero", "/etc/passwd")
        ],
        (INDEX, index_of("a\0b"), "cannot be read"),
        *[(INDEX, index_of(part), IS_NO_TEXT) for part in (1, None, ["a"], {"a": "b"})],
        *[(BERT_CONFIG, {"model_args": value}, IS_NO_OBJECT) for value in (7, "x", [1])],
    ],
)
def test_contents_that_lead_elsewhere_or_are_none(
    folder: Path, name: str, content: object, reason: str, penstock: Penstock
) -> None:
    (folder / "link").symlink_to("/etc")
    write_json(folder / name, content)
    penstock.refuses(folder, reason)


@pytest.mark.parametrize(
    ("config", "key", "value", "reason"),
    [
        (LLAMA, "num_hidden_layers", 10**9, "num_hidden_layers 1000000000 is more than 1024"),
        (BERT, "num_hidden_layers", 10**30, "is more than 1024"),
        (LLAMA, "hidden_size", 2**40, "hidden_size 1099511627776 is more than 1048576"),
        (BERT, "intermediate_size", 10**9, "intermediate_size 1000000000 is more than 1048576"),
        (LLAMA, "num_attention_heads", 2**40, "num_attention_heads 1099511627776 is more than"),
        (LLAMA, "num_key_value_heads", 10**9, "4 attention heads are not divisible by"),
        (LLAMA, "head_dim", 10**9, "head_dim 1000000000 is more than 1048576"),
        (LLAMA, "vocab_size", 10**9, "vocab_size 1000000000 is more than 16777216"),
        (LLAMA, "max_position_embeddings", 10**9, "max_position_embeddings 1000000000 is more"),
        (BERT, "type_vocab_size", 10**9, "type_vocab_size 1000000000 is more than 1048576"),
        (BERT, "num_labels", 10**9, "num_labels 1000000000 is more than 1048576"),
        (LLAMA, "rope_scaling", {"rope_type": "yarn", "factor": 1e308}, "'yarn' makes of 128"),
        (LLAMA, "architectures", ["Llama" * 10**5], "config.json: architecture 'LlamaLlama"),
        (LLAMA, "hidden_act", "a\nb\x1b[2J", "hidden_act 'a\\nb\\x1b[2J' is not supported"),
        (LLAMA, "a\nb\x1b[2J", 1, "config.json: a b [2J 1 is not known"),
        (LLAMA, "tokenizer_class", 3, "config.json: tokenizer_class is not valid: Expected `str`"),
        (LLAMA, "rope_scaling", "[" * 10**6, "rope_scaling is not valid: Expected `object`"),
    ],
)  # fmt: skip
def test_a_configuration_of_too_much(
    tmp_path: Path, config: dict, key: str, value: object, reason: str, penstock: Penstock
) -> None:
    folder = write_checkpoint(tmp_path / "model", config | {key: value})
    line = penstock.check(folder)
    assert reason in line
    lines = [line, *penstock.inspect(folder)]
    assert all(each.isprintable() and len(each) < 1100 for each in lines)


def multiply(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [TEN_LETTERS] * 6}
    write_json(folder / "tokenizer.json", tokenizer)


def test_a_tokenizer_that_multiplies(folder: Path, penstock: Penstock) -> None:
    multiply(folder)
    penstock.refuses(folder, "may make a text more than 1000 times longer")


def test_a_vocabulary_that_is_none(tmp_path: Path, penstock: Penstock) -> None:
    """Before another process reads it to convert it."""
    folder = write_checkpoint(tmp_path / "model", BERT)
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "vocab.txt")
    assert f"{folder / 'vocab.txt'} is not a regular file" in penstock.check(folder)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda folder: os.mkfifo(folder / "chat_template.jinja"), "is not a regular file"),
        (multiply, "may make a text more than 1000 times longer"),
    ],
    ids=["fifo", "tokenizer"],
)
def test_serve_ends_with_the_line(folder: Path, spoil: Callable, reason: str) -> None:
    """In a process that may take no more memory than 4 GiB, and no more than 20 s."""
    spoil(folder)
    serve = 'ulimit -v 4194304; exec "$0" -P -m server serve "$1" --port 0'
    command = ["/bin/sh", "-c", serve, sys.executable, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert str(folder) in line
    assert reason in line
    assert "Traceback" not in done.stderr
