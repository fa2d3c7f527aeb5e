"""A tensor that no stage reads stops the start, unless real checkpoints hold it in vain."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.checkpoints import (
    load_share,
    save_bert,
    save_llama,
    save_masked_lm,
    worker_config,
)
from workers.contract.config import Task
from workers.weights.checkpoint import CheckpointError
from workers.weights.loader import faults

FILE = "model.safetensors"
WORDS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"
KINDS: dict[str, tuple[Task, Callable[[Path], object]]] = {
    "llama": ("generate", lambda folder: save_llama(folder, tie_word_embeddings=True)),
    "encoder": ("embed", save_bert),
    "classifier": ("classify", lambda folder: save_bert(folder, labels=2)),
    "masked": ("embed_sparse", save_masked_lm),
}


def save(folder: Path, kind: str) -> Task:
    """The task of a model of this kind, which is in `folder` then."""
    task, write = KINDS[kind]
    write(folder)
    return task


def add(folder: Path, **tensors: torch.Tensor) -> None:
    save_file(load_file(folder / FILE) | tensors, folder / FILE)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", "model.layers.4.input_layernorm.weight"),
        ("llama", "model.layers.0.self_attn.q_norm.weight"),
        ("llama", "model.layers.0.self_attn.q_proj.bias"),
        ("llama", "model.layers.0.self_attn.q_proj.weight_scale"),
        ("llama", "score.weight"),
        ("encoder", "encoder.layer.4.output.dense.bias"),
        ("encoder", "encoder.layer.0.attention.self.distance_embedding.weight"),
        ("encoder", "linear.weight"),
        ("classifier", "bert.encoder.layer.0.crossattention.self.query.weight"),
        ("classifier", "classifier.dense.weight"),
        ("masked", "cls.predictions.transform.scale"),
    ],
)
def test_a_tensor_that_nobody_reads_is_named(tmp_path: Path, kind: str, name: str) -> None:
    task = save(tmp_path, kind)
    add(tmp_path, **{name: torch.ones(4)})
    expected = f"{tmp_path} holds {name}, which .* does not read$"
    for stage in range(2):
        with pytest.raises(CheckpointError, match=expected):
            load_share(worker_config(tmp_path, task=task, stage=stage, num_stages=2))


def test_how_many_more_there_are_is_said(tmp_path: Path) -> None:
    save_llama(tmp_path, num_hidden_layers=3)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(CheckpointError, match=r"holds model\.layers\.2\.\S+ \(and 8 more\), "):
        load_share(worker_config(tmp_path))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("llama", ["model.layers.1.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"]),
        ("encoder", ["embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"]),
        ("encoder", ["cls.predictions.bias", "cls.seq_relationship.weight", "classifier.weight"]),
        ("classifier", ["bert.embeddings.position_ids", "cls.predictions.transform.dense.weight"]),
        ("masked", ["bert.embeddings.position_ids", "bert.pooler.dense.weight"]),
        ("masked", ["cls.seq_relationship.weight", "cls.seq_relationship.bias"]),
    ],
)
def test_what_checkpoints_hold_beside_the_model_is_left_alone(
    tmp_path: Path, kind: str, names: list[str]
) -> None:
    task = save(tmp_path, kind)
    add(tmp_path, **{name: torch.ones(4) for name in names})
    for stage, num_stages in ((0, 1), (0, 2), (1, 2)):
        load_share(worker_config(tmp_path, task=task, stage=stage, num_stages=num_stages))


@pytest.mark.parametrize(
    ("kind", "copy", "original"),
    [("llama", "lm_head.weight", "model.embed_tokens.weight"), ("masked", DECODER, WORDS)],
)
def test_a_second_copy_of_a_tied_weight_must_be_one(
    tmp_path: Path, kind: str, copy: str, original: str
) -> None:
    """transformers unties the two where they differ, other servers read the one or the other."""
    config = worker_config(tmp_path, task=save(tmp_path, kind))
    weight = load_file(tmp_path / FILE)[original]
    add(tmp_path, **{copy: weight.clone()})
    load_share(config)
    expected = rf"config\.json ties {copy} to \S+, but the two differ"
    for other in (weight + 1, weight[:-1], weight.to(torch.float8_e4m3fn)):
        add(tmp_path, **{copy: other})
        with pytest.raises(CheckpointError, match=expected) as error:
            load_share(config)
        assert [*faults(config.execution)] == [str(error.value)]
