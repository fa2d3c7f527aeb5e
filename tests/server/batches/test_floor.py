"""The share of the floor, where the GPU is known."""

from pathlib import Path

import msgspec
import pytest

from server.batches import batch_command
from server.batches.batch_command import floor_seconds, products
from server.batches.results import Summary
from server.settings.settings import ServedModel
from tests.server.support import served_model

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


def test_it_is_known_for_a_generator_on_known_gpus(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(batch_command, "gpu_names", lambda: ["NVIDIA H200", "NVIDIA H200"])
    one = floor_seconds([model(tmp_path)], *DONE)
    assert one == 2 * products(model(tmp_path).execution.model, *DONE) / 650e12
    for unknown in (
        [model(tmp_path), model(tmp_path)],
        [model(tmp_path, task="embed")],
        [model(tmp_path, devices=("cpu",))],
        [model(tmp_path, dtype="float32")],
    ):
        assert floor_seconds(unknown, *DONE) is None


@pytest.mark.parametrize("gpus", [[], ["NVIDIA B200"], ["NVIDIA H200", "NVIDIA L4"]])
def test_it_is_not_guessed(tmp_path: Path, monkeypatch, gpus: list[str]) -> None:
    monkeypatch.setattr(batch_command, "gpu_names", lambda: gpus)
    assert floor_seconds([model(tmp_path)], *DONE) is None


def test_the_floor_is_of_what_was_computed() -> None:
    done = Summary(prompt_tokens=1000, saved_tokens=600, output_tokens=100)
    assert done.computed_tokens == 500
