"""RoBERTa and XLM-RoBERTa against transformers in float32: states, scores, logits; and the names of
their checkpoints."""

import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from tests.workers.checkpoints import save_randomly
from tests.workers.step_tensors import Stages, packed_step
from workers.contract.checkpoint.checkpoint_config import read_model_config

SIZES: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 82,
    "type_vocab_size": 1,
    "initializer_range": 0.15,
    "layer_norm_eps": 1e-5,
}
LIMIT = 80
# No token is the padding, 1: transformers gives that the position of none.
TEXTS = [
    random.Random(row).choices(range(2, SIZES["vocab_size"]), k=length)
    for row, length in enumerate((3, 17, 17, LIMIT, 1, 5, 44))
]


def save(folder: Path, model: Any, config: Any, **changes: Any) -> Any:
    torch.manual_seed(7)
    return save_randomly(model(config(**SIZES | changes)).eval(), folder)


def states_of(model: Any) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [model(torch.tensor([text])).last_hidden_state[0] for text in TEXTS]


def logits_of(model: Any) -> list[torch.Tensor]:
    with torch.inference_mode():
        return [model(torch.tensor([text])).logits[0] for text in TEXTS]


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_positions_begin_after_that_of_the_padding(tmp_path: Path) -> None:
    """By the padding's id, and not otherwise."""
    expected = states_of(save(tmp_path, XLMRobertaModel, XLMRobertaConfig, pad_token_id=0))
    assert read_model_config(tmp_path).max_model_len == LIMIT + 1
    assert_close(Stages(tmp_path, task="embed").run(packed_step(TEXTS)), expected)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"pad_token_id": 0', '"pad_token_id": 1'))
    shifted = Stages(tmp_path, task="embed").run(packed_step(TEXTS))
    assert not torch.allclose(shifted[3], expected[3], atol=0.1)


def test_segments_count_if_there_are_two(tmp_path: Path) -> None:
    """With one, a tokenizer that numbers the second text's tokens 1 changes nothing."""
    types = [[int(place > 2) for place in range(len(text))] for text in TEXTS]
    expected = states_of(save(tmp_path, XLMRobertaModel, XLMRobertaConfig))
    assert_close(Stages(tmp_path, task="embed").run(packed_step(TEXTS, types)), expected)
    model = save(tmp_path, RobertaModel, RobertaConfig, type_vocab_size=2)
    with torch.inference_mode():
        own = model(torch.tensor([TEXTS[3]]), token_type_ids=torch.tensor([types[3]]))
    ours = Stages(tmp_path, task="embed").run(packed_step(TEXTS, types))
    assert_close(ours[3:4], [own.last_hidden_state[0]])


def test_a_classifier_beside_a_pooler_that_it_does_not_use(tmp_path: Path) -> None:
    """Older checkpoints have both, and a buffer of positions."""
    model = save(tmp_path, RobertaForSequenceClassification, RobertaConfig, num_labels=1)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    size = SIZES["hidden_size"]
    tensors["roberta.pooler.dense.weight"] = torch.full((size, size), torch.nan)
    tensors["roberta.pooler.dense.bias"] = torch.full((size,), torch.nan)
    tensors["roberta.embeddings.position_ids"] = torch.arange(SIZES["max_position_embeddings"])
    save_file(tensors, file)
    stages = Stages(tmp_path, task="classify")
    states = stages.run(packed_step(TEXTS))
    with torch.inference_mode():
        scores = stages.models[-1].compute_logits(torch.stack([own[0] for own in states]))
    torch.testing.assert_close(scores, torch.stack(logits_of(model)), atol=1e-5, rtol=0)
