"""`penstock batch` without an engine: what cannot work fails before any work; the floor."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from server import cli
from server.batches import batch_command
from server.batches.batch_command import floor_seconds, products
from server.batches.results import Summary
from server.settings.settings import ServedModel
from tests.server.batches.requests_file import line, write
from tests.server.batches.state.full_disk import no_file_grows
from tests.server.support import served_model


@pytest.mark.parametrize(
    ("source", "output", "flags", "says"),
    [
        ("in.jsonl", "none/out", [], "cannot be written: No such file"),
        ("in.jsonl", ".", [], "is a folder"),
        ("in.jsonl", "in.jsonl", [], "is the input"),
        ("none", "out", [], "cannot be read: No such file"),
        (".", "out", [], "cannot be read: Is a directory"),
        ("in.jsonl", "complete", ["--resume"], "is complete: there is no"),
        ("in.jsonl", "begun", [], "--resume"),
    ],
)
def test_what_cannot_work_says_why(tmp_path: Path, capsys, source, output, flags, says) -> None:
    write(tmp_path, line("a"))
    (tmp_path / "complete").touch()
    (tmp_path / "begun.part").write_text("something\n")
    files = ["-i", str(tmp_path / source), "-o", str(tmp_path / output)]
    assert cli.main(["batch", *files, *flags]) == 1
    said, complained = capsys.readouterr()
    assert (said, complained.count("\n")) == ("", 1)
    assert says in complained


def test_no_room_and_no_daemon_are_told(tmp_path: Path, capsys) -> None:
    files = ["-i", str(write(tmp_path, line("a"))), "-o", str(tmp_path / "out")]
    command = ["batch", *files, "--url", "http://127.0.0.1:9"]
    with no_file_grows(1):
        assert cli.main(command) == 1
    said = capsys.readouterr().err
    assert "more bytes are needed; what is done is kept, and --resume goes on" in said
    assert cli.main([*command, "--resume"]) == 1
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err


def test_a_file_without_lines_starts_no_engine(tmp_path: Path, capsys) -> None:
    arguments = ["-i", str(write(tmp_path)), "-o", str(tmp_path / "out.jsonl")]
    assert cli.main(["batch", *arguments]) == 0
    assert (tmp_path / "out.jsonl").read_text() == ""
    assert capsys.readouterr().out.startswith("0 requests (0 failed)")


DONE = (500, 100)


def model(folder: Path, **changes: object) -> ServedModel:
    """On a GPU in bfloat16, unless `changes` of its execution say otherwise."""
    served = served_model("m", "generate", folder, "ipc://x", vocab_size=400)
    changes = {"devices": ("cuda:0",), "dtype": "bfloat16"} | changes
    execution = msgspec.structs.replace(served.execution, **changes)
    engine = msgspec.structs.replace(served.engine, execution=execution)
    return msgspec.structs.replace(served, engine=engine)


def test_products_are_those_of_what_was_computed(tmp_path: Path) -> None:
    shape = model(tmp_path).execution.model
    weights = shape.hidden_size * (4 * shape.num_heads * shape.head_dim)
    weights += 3 * shape.hidden_size * shape.intermediate_size
    head = shape.hidden_size * shape.vocab_size
    assert products(shape, *DONE) == shape.num_layers * weights * 500 + head * 100


H200S = ["NVIDIA H200", "NVIDIA H200"]


@pytest.mark.parametrize(
    ("gpus", "models"),
    [
        (H200S, [{}, {}]),
        (H200S, [{"task": "embed"}]),
        (H200S, [{"devices": ("cpu",)}]),
        (H200S, [{"dtype": "float32"}]),
        ([], [{}]),
        (["NVIDIA B200"], [{}]),
        (["NVIDIA H200", "NVIDIA L4"], [{}]),
    ],
)
def test_it_is_known_for_a_generator_on_known_gpus_alone(
    tmp_path: Path, monkeypatch, gpus: list[str], models: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(batch_command, "gpu_names", lambda: H200S)
    one = floor_seconds([model(tmp_path)], *DONE)
    assert one == 2 * products(model(tmp_path).execution.model, *DONE) / 650e12
    monkeypatch.setattr(batch_command, "gpu_names", lambda: gpus)
    assert floor_seconds([model(tmp_path, **changes) for changes in models], *DONE) is None


def test_the_floor_is_of_what_was_computed() -> None:
    done = Summary(prompt_tokens=1000, saved_tokens=600, output_tokens=100)
    assert done.computed_tokens == 500
