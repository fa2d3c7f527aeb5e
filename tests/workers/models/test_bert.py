"""BERT against transformers in float32: states, scores, and the names of older checkpoints."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.checkpoints import BERT, save_bert
from tests.workers.step_tensors import Stages, packed_step

TEXTS = [
    random.Random(row).choices(range(BERT["vocab_size"]), k=length)
    for row, length in enumerate((3, 17, 17, 60, 1, 5, 44))
]
TYPES = [[int(place >= len(text) // 2) for place in range(len(text))] for text in TEXTS]


def reference_states(model: Any, types: list[list[int]] | None = None) -> list[torch.Tensor]:
    """Token states [tokens, hidden_size] of each text alone."""
    with torch.inference_mode():
        return [
            model(
                torch.tensor([text]),
                token_type_ids=torch.tensor([types[row]]) if types else None,
            ).last_hidden_state[0]
            for row, text in enumerate(TEXTS)
        ]


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu"])
def test_states_agree_with_transformers(tmp_path: Path, hidden_act: str) -> None:
    expected = reference_states(save_bert(tmp_path, hidden_act=hidden_act))
    assert min(float(own.std()) for own in expected) > 0.5
    assert_close(Stages(tmp_path, task="embed").run(packed_step(TEXTS)), expected)


@pytest.mark.parametrize("backend", ["sdpa", "naive"])
def test_segments_count(tmp_path: Path, backend: str) -> None:
    model = save_bert(tmp_path)
    stages = Stages(tmp_path, task="embed", backend=backend)
    ours = stages.run(packed_step(TEXTS, TYPES))
    assert_close(ours, reference_states(model, TYPES))
    assert not torch.allclose(ours[3], stages.run(packed_step(TEXTS))[3], atol=1e-2)


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_stages_do_not_change_a_bit(tmp_path: Path, num_stages: int) -> None:
    save_bert(tmp_path)
    step = packed_step(TEXTS, TYPES)
    whole = Stages(tmp_path, task="embed").run(step)
    split = Stages(tmp_path, task="embed", num_stages=num_stages).run(step)
    assert all(torch.equal(a, b) for a, b in zip(whole, split, strict=True))


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("num_stages", [1, 2])
def test_classifier_scores_agree(tmp_path: Path, labels: int, num_stages: int) -> None:
    model = save_bert(tmp_path, labels=labels)
    stages = Stages(tmp_path, task="classify", num_stages=num_stages)
    states = stages.run(packed_step(TEXTS, TYPES))
    with torch.inference_mode():
        scores = stages.models[-1].compute_logits(torch.stack([own[0] for own in states]))
        expected = torch.cat(
            [
                model(torch.tensor([text]), token_type_ids=torch.tensor([types])).logits
                for text, types in zip(TEXTS, TYPES, strict=True)
            ]
        )
    assert scores.shape == (len(TEXTS), labels)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


def test_an_encoder_reads_the_checkpoint_of_a_model_with_a_head(tmp_path: Path) -> None:
    """Names begin with "bert.", norms say gamma and beta, and there is more than is needed."""
    expected = reference_states(save_bert(tmp_path))
    file = tmp_path / "model.safetensors"
    tensors = {f"bert.{_old_name(name)}": tensor for name, tensor in load_file(file).items()}
    tensors["bert.embeddings.position_ids"] = torch.arange(BERT["max_position_embeddings"])
    tensors["cls.predictions.transform.LayerNorm.gamma"] = torch.ones(BERT["hidden_size"])
    assert "bert.encoder.layer.0.output.LayerNorm.gamma" in tensors
    save_file(tensors, file)
    assert_close(Stages(tmp_path, task="embed").run(packed_step(TEXTS)), expected)


def _old_name(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    )
