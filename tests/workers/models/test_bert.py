"""The names of older checkpoints of BERT."""

import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.workers.checkpoints import BERT, save_bert
from tests.workers.step_tensors import Stages, packed_step

TEXTS = [
    random.Random(row).choices(range(BERT["vocab_size"]), k=length)
    for row, length in enumerate((3, 17, 17, 60, 1, 5, 44))
]


def reference_states(model: Any) -> list[torch.Tensor]:
    """Token states [tokens, hidden_size] of each text alone."""
    with torch.inference_mode():
        return [model(torch.tensor([text])).last_hidden_state[0] for text in TEXTS]


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


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
