"""What stages need, against the parameter counts of models that people know."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from server.bench.dummy_models import parse_shape
from server.models.model_source import read_heads
from server.models.stage_memory import weight_bytes
from tests.server.checkpoint_folders import BERT, LLAMA, LLAMA_8B, write_checkpoint, write_modules
from tests.server.support import set_up
from tests.workers.models.encoders import ENCODERS
from tests.workers.models.gemma4_decoders import GEMMA4_DECODERS
from workers.contract.model_config import ModelConfigError


def shape(config: dict[str, Any], width: int, hidden: int, layers: int, vocabulary: int) -> Any:
    """`config` in the size of a published model with 12 heads."""
    sizes = {"hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers}
    return config | sizes | {"num_attention_heads": 12, "vocab_size": vocabulary}


BGE_BASE = shape(BERT, 768, 3072, 12, 30_522)
MODERNBERT = {"architectures": ["ModernBertModel"], "max_position_embeddings": 8192}
MODERNBERT_BASE = shape(MODERNBERT, 768, 1152, 22, 50_368)
ALBERT = {"architectures": ["AlbertModel"], "max_position_embeddings": 512}
ALBERT_BASE = shape(ALBERT, 768, 3072, 12, 30_000)
ELECTRA = {"architectures": ["ElectraModel"], "max_position_embeddings": 512}
ELECTRA_SMALL = shape(ELECTRA, 256, 1024, 12, 30_522) | {"num_attention_heads": 4}


def weights(folder: Path, config: dict[str, Any], **options: Any) -> list[int]:
    """By the shape alone."""
    folder = write_checkpoint(folder / f"model-{len(list(folder.iterdir()))}", config)
    return weights_of(folder, load_format="dummy", **options)


def weights_of(folder: Path, **options: Any) -> list[int]:
    execution = set_up(folder, dtype="bfloat16", **options).execution
    return weight_bytes(execution, None if "load_format" in options else read_heads(folder))


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (LLAMA_8B, 8.030e9),
        (BGE_BASE, 109.5e6),
        (MODERNBERT_BASE, 149.0e6),
        (ALBERT_BASE, 11.1e6),
        (ELECTRA_SMALL, 13.5e6),
    ],
    ids=["llama", "bge", "modernbert", "albert", "electra"],
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
    first, *middle, last = weights(tmp_path, LLAMA_8B, **stages)
    assert (first, last) == (9 * a_layer + table, 7 * a_layer + table)
    assert middle == [8 * a_layer] * 2


@pytest.mark.parametrize("name", ["albert_words", "albert"])
def test_every_stage_has_the_layer_that_all_share(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path / "model", BERT)
    ENCODERS[name].save(folder)
    stages = {"dtype": "float32", "pipeline_stages": 2}
    one = 4 * (4 * 64 * 64 + 2 * 64 * 96)
    table = 4 * 199 * 48
    task_table = table if name == "albert_words" else 0
    execution = set_up(folder, **stages).execution
    assert weight_bytes(execution, None) == [one + table, one + task_table]
    first, last = weight_bytes(execution, read_heads(folder))
    assert one + table < first < 1.3 * (one + table)
    assert one + task_table < last


def test_an_embedders_last_stage_has_its_dense_modules(tmp_path: Path) -> None:
    bare = weights(tmp_path, BERT, pipeline_stages=2)
    folder = write_checkpoint(tmp_path / "dense", BERT)
    write_modules(folder, Pooling={}, Dense={"in_features": 32, "out_features": 100})
    (folder / "2_Dense" / "model.safetensors").symlink_to(folder / "model.safetensors")
    of_shape = weights_of(folder, pipeline_stages=2, load_format="dummy")
    assert of_shape == [bare[0], bare[1] + 2 * 32 * 100]
    assert weights_of(folder, pipeline_stages=2) == [0, 2 * 8 * 8 + 2 * 32 * 100]
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(ModelConfigError, match=r"model\.safetensors is missing from .*2_Dense"):
        weights_of(folder)


def test_an_encoder_has_an_embedding_alone(tmp_path: Path) -> None:
    first, last = weights(tmp_path, BGE_BASE, pipeline_stages=2)
    assert first - last == 30_522 * 768 * 2
    splade = BGE_BASE | {"architectures": ["BertForMaskedLM"]}
    first, last = weights(tmp_path, splade, pipeline_stages=2)
    assert first == last


EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LAYERS = {f"model.layers.{i}.{part}": 10 + i for i in range(2) for part in ("a", "b.weight")}


@pytest.mark.parametrize(
    ("tied", "stages", "expected"),
    [
        (False, 1, [20 + 22 + 2048 + 32 + 2048]),
        (False, 2, [20 + 2048, 22 + 32 + 2048]),
        (True, 1, [20 + 22 + 2048 + 32]),
        (True, 2, [20 + 2048, 22 + 32 + 2048]),
    ],
)
@pytest.mark.parametrize("copied", [True, False])
def test_the_heads_of_files_say_what_a_stage_has(
    tmp_path: Path, tied: bool, stages: int, expected: list[int], copied: bool
) -> None:
    """In float32, computed with in bfloat16; a tied checkpoint may have a second copy."""
    config = LLAMA | {"tie_word_embeddings": tied}
    folder = write_checkpoint(tmp_path / "llama", config)
    elements = LAYERS | {EMBEDDING: 64 * 32, NORM: 32}
    if not tied or copied:
        elements[HEAD] = 64 * 32
    tensors = {name: np.zeros(count, np.float32) for name, count in elements.items()}
    save_file(tensors, folder / "model.safetensors")
    assert weights_of(folder, pipeline_stages=stages) == [2 * count for count in expected]


def test_keys_and_values_that_nobody_reads_do_not_count(tmp_path: Path) -> None:
    """Layer 5 attends to those of layer 3, and has some in published files as well."""
    tiny = GEMMA4_DECODERS["gemma4_with_layer_inputs"]
    config = {**tiny.config, "architectures": [tiny.architecture], "vocab_size": 64}
    folder = write_checkpoint(tmp_path / "gemma", config)
    elements = {EMBEDDING: 64 * 64, "model.layers.3.self_attn.k_proj.weight": 48}
    elements["model.layers.5.self_attn.q_proj.weight"] = 96
    unread = {f"model.layers.5.self_attn.{name}.weight" for name in ("k_proj", "v_proj", "k_norm")}
    tensors = {name: np.zeros(count, np.float32) for name, count in elements.items()}
    unread_tensors = {name: np.zeros(48, np.float32) for name in unread}
    save_file(tensors | unread_tensors, folder / "model.safetensors")
    assert weights_of(folder) == [2 * (64 * 64 + 48 + 96)]


def test_pickles_count_by_the_shape(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "llama", LLAMA)
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.ones(3)}, folder / "pytorch_model.bin")
    of_shape = weights(tmp_path, LLAMA, pipeline_stages=2)
    assert weights_of(folder, pipeline_stages=2) == of_shape


def test_a_reranker_has_no_lm_head(tmp_path: Path) -> None:
    """But for a row or two of it."""
    folder = write_checkpoint(tmp_path / "llama", LLAMA)
    generates = set_up(folder, dtype="bfloat16").execution
    reranks = msgspec.structs.replace(generates, task="rerank")
    heads = {"model.embed_tokens.weight": 70, "lm_head.weight": 50}
    assert (weight_bytes(generates, heads), weight_bytes(reranks, heads)) == ([240], [140])
    (more,), (less,) = weight_bytes(generates, None), weight_bytes(reranks, None)
    assert more - less == 2 * LLAMA["vocab_size"] * LLAMA["hidden_size"]


FP8 = {
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["model.layers.1"],
}
TABLES = 2 * 64 * 32


@pytest.mark.parametrize(("held", "item"), [((), 2), (("cpu",), 1)])
def test_layers_in_fp8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: tuple[str, ...], item: int
) -> None:
    """Where devices hold FP8 they take half, but for layers that are not in it."""
    monkeypatch.setattr("workers.contract.config.FP8_DEVICES", frozenset(held))
    folder = write_checkpoint(tmp_path / "llama", LLAMA | {"quantization_config": FP8})
    names = {f"model.layers.{i}.mlp.up_proj.weight": 1000 for i in range(2)}
    heads = names | {"model.layers.0.mlp.up_proj.weight_scale_inv": 8, "lm_head.weight": 50}
    execution = set_up(folder, dtype="bfloat16", load_format="dummy", pipeline_stages=2).execution
    assert weight_bytes(execution, heads) == [1000 * item, 2000 + 100]
    layer = 2 * 32 * 6 * 8 + 3 * 32 * 64
    (own,) = weights(tmp_path, LLAMA, quantization="fp8")
    assert own == 2 * layer * item + 2 * TABLES


@pytest.mark.parametrize(("held", "gigabytes"), [((), 41.8), (("cpu",), 13.76)])
def test_experts_in_mxfp4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: tuple[str, ...], gigabytes: float
) -> None:
    """gpt-oss-20b has 19.1e9 of its 20.9e9 numbers in experts; its files take 13.76 GB."""
    monkeypatch.setattr("workers.contract.config.FP8_DEVICES", frozenset(held))
    config = json.loads((parse_shape("gpt-oss-20b") / "config.json").read_text())
    (own,) = weights(tmp_path, config)
    assert own == pytest.approx(gigabytes * 1e9, rel=2e-3)
