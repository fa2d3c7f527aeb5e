"""Loading: what is read, what is refused and in which words, and dummy weights."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.checkpoints import (
    LLAMA,
    load_share,
    save_llama,
    save_masked_lm,
    stage_weights,
    worker_config,
)
from workers.contract.config import WorkerConfig
from workers.contract.model_config import ModelConfigError
from workers.contract.share import shares_of
from workers.weights import loader
from workers.weights.loader import load_model

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
NORM = "model.layers.1.input_layernorm.weight"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    save_llama(tmp_path)
    return tmp_path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    save_llama(tmp_path, shard_size="60KB")
    return tmp_path


def refusal(config: WorkerConfig) -> str:
    """The one line in which loading is refused."""
    with pytest.raises(ModelConfigError) as error:
        load_share(config)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_a_truncated_file(llama: Path, kept: int) -> None:
    whole = (llama / FILE).read_bytes()
    (llama / FILE).write_bytes(whole[:kept])
    assert refusal(worker_config(llama)).startswith(f"{llama / FILE} cannot be read: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({NORM: None}, f"{{folder}} has no tensor {NORM}"),
        ({NORM: None, "model.norm.weight": None}, "(and 1 more)"),
        (
            {NORM: torch.ones(63)},
            f"{NORM} in {{folder}}/{FILE} has shape [63], the model needs [64]",
        ),
        ({NORM: torch.ones(64, dtype=torch.int8)}, "is torch.int8"),
    ],
)
def test_a_tensor_is_missing_or_does_not_fit(
    llama: Path, changes: dict[str, torch.Tensor | None], message: str
) -> None:
    tensors = load_file(llama / FILE) | changes
    save_file({name: own for name, own in tensors.items() if own is not None}, llama / FILE)
    assert message.format(folder=llama) in refusal(worker_config(llama))


def test_files_that_are_absent(shards: Path) -> None:
    shard = next(shards.glob("model-00002-*"))
    shard.unlink()
    expected = f"{shard.name}, listed in its index, is missing from {shards}"
    assert refusal(worker_config(shards)) == expected
    (shards / INDEX).unlink()
    assert refusal(worker_config(shards)) == f"{FILE} is missing from {shards}"


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_an_index_that_is_none(shards: Path, text: str) -> None:
    (shards / INDEX).write_text(text)
    assert str(shards / INDEX) in refusal(worker_config(shards))


def test_an_index_that_names_the_wrong_file(shards: Path) -> None:
    index: Any = json.loads((shards / INDEX).read_text())
    files = index["weight_map"]
    other = next(name for name in files.values() if name != files[NORM])
    files[NORM] = other
    (shards / INDEX).write_text(json.dumps(index))
    message = refusal(worker_config(shards))
    assert str(shards / other) in message
    assert NORM in message


def test_a_stage_opens_only_the_files_that_it_needs(shards: Path) -> None:
    files = json.loads((shards / INDEX).read_text())["weight_map"]
    needed = {
        file
        for name, file in files.items()
        if name.startswith(("model.embed_tokens", "model.layers.0.", "model.layers.1."))
    }
    others = set(files.values()) - needed
    assert others
    for file in others:
        (shards / file).write_bytes(b"")
    load_share(worker_config(shards, num_stages=2))
    assert "cannot be read" in refusal(worker_config(shards, stage=1, num_stages=2))


@pytest.mark.parametrize("stage_layers", [(4,), (3, 1), (1, 2, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("save", [save_llama, save_masked_lm])
def test_stages_hold_each_weight_once(
    tmp_path: Path, save: Callable[..., Any], stage_layers: tuple[int, ...], tied: bool
) -> None:
    """But for tied embeddings, which the first and the last stage both need."""
    model = save(tmp_path, tie_word_embeddings=tied)
    total = sum(parameter.nbytes for parameter in model.parameters())
    if save is save_masked_lm and not tied:
        total -= model.cls.predictions.bias.nbytes  # the decoder has another
    config = worker_config(tmp_path)
    sizes = [load_model(config, share).weight_bytes for share in shares_of(stage_layers)]
    embedding = model.get_input_embeddings().weight.nbytes
    assert sum(sizes) == total + (embedding if tied and len(sizes) > 1 else 0)


def test_weights_take_the_dtype_that_is_asked_for(llama: Path) -> None:
    full = load_share(worker_config(llama)).weight_bytes
    assert load_share(worker_config(llama, dtype="bfloat16")).weight_bytes == full // 2


def test_a_slow_load_says_how_far_it_is(
    llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    load_share(worker_config(llama))
    assert not caplog.messages
    monkeypatch.setattr("workers.progress_bar._LOG_SECONDS", 0.0)
    load_share(worker_config(llama))
    total = len(load_file(llama / FILE))
    assert caplog.messages == [f"reading weights: {done} of {total}" for done in range(total)]


def made_up(config: WorkerConfig) -> dict[str, torch.Tensor]:
    """A stage's dummy weights, by checkpoint name."""
    weights = stage_weights(config)
    loader.fill_randomly(weights)
    return weights


def test_dummy_weights_need_no_files_and_make_no_flat_logits(llama: Path) -> None:
    (llama / FILE).unlink()
    model = load_share(worker_config(llama, load_format="dummy")).model
    states = torch.nn.functional.rms_norm(torch.randn(50, LLAMA["hidden_size"]), (64,))
    assert model.compute_logits(states).std() >= 1


@pytest.mark.parametrize("num_stages", [2, 4])
def test_dummy_weights_do_not_depend_on_the_stages(llama: Path, num_stages: int) -> None:
    whole = made_up(worker_config(llama))
    assert set(whole) == set(load_file(llama / FILE))
    split: dict[str, torch.Tensor] = {}
    for stage in range(num_stages):
        split |= made_up(worker_config(llama, stage=stage, num_stages=num_stages))
    assert set(split) == set(whole)
    assert all(torch.equal(split[name], whole[name]) for name in whole)
    assert not torch.equal(
        whole["model.layers.0.mlp.up_proj.weight"], whole["model.layers.1.mlp.up_proj.weight"]
    )
