"""What stages need, against the parameter counts of models that people know."""

from pathlib import Path
from typing import Any

import pytest

from server.models.model_setup import EngineOptions, set_up_model
from server.models.stage_memory import weight_bytes
from server.settings.server_config import Limits
from tests.server.checkpoint_folders import BERT, LLAMA_8B, write_checkpoint

BGE_BASE = BERT | {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "vocab_size": 30_522,
}


def weights(folder: Path, config: dict[str, Any], **options: Any) -> list[int]:
    options = {"device": "cpu", "dtype": "bfloat16", "load_format": "dummy"} | options
    folder = write_checkpoint(folder / f"model-{len(list(folder.iterdir()))}", config)
    model = set_up_model("m", folder, EngineOptions(**options), Limits(), str(folder / "0"))
    return weight_bytes(model.execution)


@pytest.mark.parametrize(
    ("config", "parameters"), [(LLAMA_8B, 8.030e9), (BGE_BASE, 109.5e6)], ids=["llama", "bge"]
)
def test_one_stage_has_all_parameters(
    tmp_path: Path, config: dict[str, Any], parameters: float
) -> None:
    """All but norms, biases, positions and poolers, which are less than 2 %."""
    (nbytes,) = weights(tmp_path, config)
    assert 0.98 * 2 * parameters < nbytes < 2 * parameters


def test_the_first_stage_has_the_embedding_and_the_last_the_head(tmp_path: Path) -> None:
    table = 128_256 * 4096 * 2
    (whole,) = weights(tmp_path, LLAMA_8B)
    a_layer = (whole - 2 * table) // 32
    stages = {"pipeline_stages": 4, "stage_layers": (9, 8, 8, 7)}
    first, second, third, last = weights(tmp_path, LLAMA_8B, **stages)
    assert (first, second, third, last) == (
        9 * a_layer + table, 8 * a_layer, 8 * a_layer, 7 * a_layer + table
    )  # fmt: skip


def test_a_tied_head_is_a_second_copy_on_another_stage(tmp_path: Path) -> None:
    tied = LLAMA_8B | {"tie_word_embeddings": True}
    (untied,) = weights(tmp_path, LLAMA_8B)
    (whole,) = weights(tmp_path, tied)
    assert untied - whole == 128_256 * 4096 * 2
    assert sum(weights(tmp_path, tied, pipeline_stages=2)) == untied


def test_an_encoder_has_an_embedding_alone(tmp_path: Path) -> None:
    first, last = weights(tmp_path, BGE_BASE, pipeline_stages=2)
    assert first - last == 30_522 * 768 * 2
    splade = BGE_BASE | {"architectures": ["BertForMaskedLM"]}
    first, last = weights(tmp_path, splade, pipeline_stages=2)
    assert first == last
