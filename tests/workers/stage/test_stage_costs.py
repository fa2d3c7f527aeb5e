"""Costs of the parts of a model, measured before its layers are divided."""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine_core.executor.partition import choose_layers
from tests.workers.checkpoints import (
    BERT,
    load_share,
    save_bert,
    save_llama,
    save_masked_lm,
    with_execution,
    worker_config,
)
from tests.workers.links.test_gloo import without_time
from tests.workers.models.tiny_models import TinyModel
from tests.workers.stages import EncoderStages
from tests.workers.step_maker import encoder_step
from tests.workers.worker_group import WorkerGroup
from workers.attention.backend_selection import select_backends
from workers.contract.config import Task, WorkerConfig
from workers.contract.quantization import Quantization
from workers.contract.share import StageCosts, shares_of
from workers.device.choices import Choices
from workers.stage import worker
from workers.stage.model_runner import attention_needs
from workers.stage.stage_costs import LEAST_LAYER_WEIGHTS

pytestmark = pytest.mark.alone

WIDE: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3}
SECONDS = 5.0


def perhaps_measured(config: WorkerConfig, **execution: Any) -> StageCosts | None:
    """As a worker of two stages measures it, unless it need not."""
    config = with_execution(config, **{"devices": ("cpu", "cpu"), **execution})
    backends = select_backends("auto", attention_needs(config.execution), Choices())
    with torch.inference_mode():
        return worker._costs(config, backends)


def measured(config: WorkerConfig) -> StageCosts:
    costs = perhaps_measured(config)
    assert costs is not None
    return costs


@pytest.mark.parametrize("tied", [False, True])
def test_a_decoder_is_measured_for_decoding_and_prompts(tmp_path: Path, tied: bool) -> None:
    model = save_llama(tmp_path, **WIDE, vocab_size=50_000, tie_word_embeddings=tied)
    (tmp_path / "model.safetensors").unlink()  # made-up weights need none
    started = time.monotonic()
    costs = measured(worker_config(tmp_path))
    assert time.monotonic() - started < SECONDS
    layer, table = model.model.layers[0], model.model.embed_tokens.weight.nbytes
    assert costs.layer.weight_bytes == sum(weight.nbytes for weight in layer.parameters())
    assert costs.embedding.weight_bytes == table
    assert costs.head.weight_bytes == table + model.model.norm.weight.nbytes
    assert costs.kv_block_bytes == 2 * 4 * 2 * 128 * 4
    for part in (costs.layer, costs.embedding):
        assert part.decode > 0
        assert part.prompts > 0
    # The head multiplies each row by 26 million numbers, the layer by two million.
    assert costs.head.decode > costs.layer.decode > costs.embedding.decode


def test_layers_that_are_one_have_its_weights_once_and_take_its_time_each(tmp_path: Path) -> None:
    sizes = {**BERT, **WIDE, "embedding_size": 128}
    model = TinyModel(architecture="AlbertModel", config=sizes).save(tmp_path)
    config = worker_config(tmp_path, task="embed")
    costs, loaded = measured(config), load_share(config)
    (layer,) = model.encoder.albert_layer_groups[0].albert_layers
    widened = model.encoder.embedding_hidden_mapping_in
    own, table = [*layer.parameters()], [*model.embeddings.parameters(), *widened.parameters()]
    assert costs.layer.weight_bytes == sum(weight.nbytes for weight in own)
    assert costs.embedding.weight_bytes == sum(weight.nbytes for weight in table)
    assert loaded.weight_bytes == costs.layer.weight_bytes + costs.embedding.weight_bytes
    assert (len(loaded.model.layers), config.execution.model.num_layers) == (3, 3)
    slow = msgspec.structs.replace(costs.embedding, prompts=1.5 * costs.layer.prompts)
    costs = msgspec.structs.replace(costs, embedding=slow)
    assert choose_layers(config.execution, [costs, costs]) == (1, 2)


@pytest.mark.parametrize(
    ("task", "labels", "weights"), [("classify", 2, 512 * 515 + 2), ("embed", 0, 0)]
)
def test_the_head_of_a_classifier_is_small_and_an_embedders_has_no_weights(
    tmp_path: Path, task: Task, labels: int, weights: int
) -> None:
    save_bert(tmp_path, labels=labels, **WIDE)
    costs = measured(worker_config(tmp_path, task=task))
    # A classifier's last layer computes little behind the attention of its first tokens.
    assert costs.layer.prompts > costs.head.prompts
    assert (costs.head.prompts < -costs.layer.prompts / 10) == (task == "classify")
    assert (costs.layer.decode, costs.head.decode, costs.kv_block_bytes) == (0, 0, 0)
    assert costs.head.weight_bytes == 4 * weights


SHAPE_8B = {"hidden_size": 4096, "intermediate_size": 14_336, "vocab_size": 128_256}


@pytest.mark.parametrize(
    ("task", "saved", "served", "execution"),
    [
        ("generate", {}, {}, {}),  # layers that are launched for longer than they run
        ("embed", {}, {}, {}),
        ("generate", {}, SHAPE_8B, {}),  # what a CPU would take seconds to make up
        ("generate", WIDE, {}, {"devices": ("cpu",)}),  # layers that nobody is to divide
        ("generate", WIDE, {}, {"stage_layers": (2, 1)}),
    ],
)
def test_what_is_not_measured(
    tmp_path: Path,
    task: Task,
    saved: dict[str, Any],
    served: dict[str, Any],
    execution: dict[str, Any],
) -> None:
    save = save_llama if task == "generate" else save_bert
    save(tmp_path, **saved)
    config = worker_config(tmp_path, task=task)
    model = msgspec.structs.replace(config.execution.model, **served)
    started = time.monotonic()
    assert perhaps_measured(with_execution(config, model=model), **execution) is None
    assert time.monotonic() - started < 0.3


def test_a_layer_of_the_least_size_is_measured(tmp_path: Path) -> None:
    size = 512
    save_llama(tmp_path, hidden_size=size, intermediate_size=256, num_key_value_heads=4)
    weights = 4 * size * size + 3 * size * 256 + 2 * size
    assert weights > LEAST_LAYER_WEIGHTS
    costs = measured(worker_config(tmp_path, dtype="bfloat16"))
    assert costs.layer.weight_bytes == 2 * weights


def test_a_heavy_head_takes_a_layer_off_the_last_stage(tmp_path: Path) -> None:
    """The head multiplies each token by ten million numbers, a layer by two million."""
    task: Task = "embed_sparse"
    save_masked_lm(tmp_path, **(WIDE | {"num_hidden_layers": 4}), vocab_size=20_000)
    step = encoder_step([[5] * 17, [6, 7, 8]])
    expected = EncoderStages(tmp_path, task=task, backend="naive").run(step)
    config = with_execution(
        worker_config(tmp_path, task=task),
        attention_backend="naive",
        choices_folder=str(tmp_path / "choices"),
    )
    with WorkerGroup(config, 2) as group:
        group.get_ready(0)
        assert group.shares == shares_of([3, 1])
        lines = [line for stage in (0, 1) for line in group.log(stage)]
        assert sum("measured what each part" in line for line in lines) == 1
        group.submit(step)
        assert without_time(group.output()) == expected


def test_layers_in_fp8_cost_what_they_take_once_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four bytes each, dequantised to float32; one on devices that have products of them."""
    save_llama(tmp_path, **WIDE)
    plain = worker_config(tmp_path)
    by_token = Quantization(method="fp8", weights="tensor", activations="token")
    model = msgspec.structs.replace(plain.execution.model, quantization=by_token)
    in_fp8 = with_execution(plain, model=model)
    scales = 7 * 4
    assert measured(in_fp8).layer.weight_bytes == measured(plain).layer.weight_bytes + scales
    monkeypatch.setattr("workers.contract.config.FP8_DEVICES", frozenset(("cpu",)))
    norms = 2 * 4 * 512
    numbers = (measured(plain).layer.weight_bytes - norms) // 4
    assert measured(in_fp8).layer.weight_bytes == numbers + norms + scales
