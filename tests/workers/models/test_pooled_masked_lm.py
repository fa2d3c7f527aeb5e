"""An embedder whose checkpoint is a masked language model: it reads the encoder and leaves the
head, as of all-mpnet-base-v2 and all-distilroberta-v1."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.workers.models.encoders import ENCODERS
from tests.workers.models.test_encoders import texts_for
from tests.workers.models.tiny_models import TinyModels
from tests.workers.step_tensors import Stages, packed_step
from workers.contract.checkpoint.checkpoint_config import read_model_config

MODULES = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")


def make_embedder(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    modules = [
        {"idx": index, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(MODULES)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet"])
def test_states_are_those_of_the_encoder(
    tiny_models: TinyModels, tmp_path: Path, name: str
) -> None:
    tiny = ENCODERS[f"{name}_words"]
    model: Any = tiny.save(tmp_path)
    make_embedder(tmp_path)
    base = tiny.model_class.__name__.removesuffix("ForMaskedLM")
    assert read_model_config(tmp_path).architecture == f"{base}Model"
    texts = texts_for(tiny)
    ours = Stages(tmp_path, task="embed", num_stages=2).run(packed_step(texts))
    for text, own in zip(texts, ours, strict=True):
        with torch.inference_mode():
            expected = model.base_model(torch.tensor([text])).last_hidden_state[0]
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=0)
