"""Counted experts: those of rows that choose alike, and of rows that choose for themselves."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import workers.weights.loader
from benchmarks.worker.experts_touched import experts_touched
from server.bench.dummy_models import parse_shape
from server.bench.workloads import GenerationCase
from server.models.model_setup import EngineOptions
from workers.weights.loader import fill_randomly

OPTIONS = EngineOptions(device="cpu", load_format="dummy", threads=1)
CASE = GenerationCase(name="four", count=4, own=40, outputs=4)


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3-30B-A3B's 8 of 128 experts a token, in two small layers."""
    folder = tmp_path_factory.mktemp("shape")
    config = json.loads((parse_shape("qwen3-30b-a3b") / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "hidden_size": 64, "head_dim": 16, "vocab_size": 20_480}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "moe_intermediate_size": 16}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_each_kind_of_step_is_counted(shape: Path) -> None:
    ((name, touched),) = experts_touched(shape, OPTIONS, [CASE])
    assert name == "four"
    prompts, single = touched
    assert (prompts.steps, prompts.tokens) == (1, 4 * 40)
    assert (single.steps, single.tokens) == (3, 4.0)
    assert single.even == pytest.approx(128 * (1 - (15 / 16) ** 4))
    assert 8 < single.experts <= 32
    assert 32 < prompts.experts <= 128


def test_a_router_without_a_preference_chooses_alike_for_all(
    shape: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_routers(weights: Mapping[str, torch.Tensor]) -> None:
        fill_randomly(weights)
        for name, weight in weights.items():
            if name.endswith("mlp.gate.weight"):
                weight.zero_()

    monkeypatch.setattr(workers.weights.loader, "fill_randomly", without_routers)
    ((_, touched),) = experts_touched(shape, OPTIONS, [CASE])
    assert [each.experts for each in touched] == [8, 8]
