"""What `penstock inspect` says of weights that `penstock serve` would refuse: it agrees with the
loader."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from server.models.inspection import inspect
from server.models.model_setup import EngineOptions
from server.models.model_source import SetupError
from tests.server.checkpoint_folders import (
    BERT,
    LLAMA,
    write_checkpoint,
    write_json,
    write_modules,
)
from tests.server.models.fitting_weights import write_model
from tests.server.support import set_up
from tests.workers.checkpoints import save_llama, worker_config
from tests.workers.weights.fp8_formats import FORMATS, quantise
from workers.contract.share import shares_of
from workers.weights.checkpoint import CheckpointError
from workers.weights.loader import load_model

WEIGHT = "model.layers.1.mlp.down_proj.weight"
STEM, SCALES = WEIGHT.removesuffix("weight"), torch.zeros(1, 32).half()


@pytest.mark.parametrize(
    ("others", "reasons"),
    [
        (dict.fromkeys([WEIGHT, "model.norm.weight"]), [f"has no tensor {WEIGHT} (and 1 more)"]),
        ({WEIGHT: torch.zeros(64, 32)},
         [f"{WEIGHT} in FILE has shape [64, 32], the model needs [32, 64]"]),
        ({WEIGHT: torch.zeros(32, 64, dtype=torch.float8_e4m3fn)},
         [f"{WEIGHT} in FILE is torch.float8_e4m3fn, which is served only for linear"]),
        ({WEIGHT: None, f"{STEM}qweight": torch.zeros(8, 32).int(), f"{STEM}scales": SCALES},
         ["down_proj.qweight (and 1 more), which the model", f"has no tensor {WEIGHT}"]),
        ({"model.layers.2.input_layernorm.weight": torch.zeros(32)},
         ["holds model.layers.2.input_layernorm.weight, which the model"]),
    ],
    ids=["without", "another shape", "float8", "packed", "another layer"],
)  # fmt: skip
def test_tensors_that_serve_would_refuse(
    tmp_path: Path, others: dict[str, torch.Tensor | None], reasons: list[str]
) -> None:
    folder = write_model(tmp_path / "llama", LLAMA)
    file = folder / "model.safetensors"
    spoilt = (load_file(file) | others).items()
    save_file({name: tensor for name, tensor in spoilt if tensor is not None}, file)
    refused = inspect(str(folder), EngineOptions(device="cpu")).refused
    assert len(refused) == len(reasons)
    for told, reason in zip(refused, reasons, strict=True):
        assert reason.replace("FILE", str(file)) in told
    config = worker_config(folder)
    (share,) = shares_of([config.execution.model.num_layers])
    with pytest.raises(CheckpointError) as error:
        load_model(config, share)
    assert str(error.value) == refused[0]


def test_the_matrices_behind_a_pooling(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "bert", BERT)
    dense = {"in_features": 32, "out_features": 8}
    write_modules(folder, Pooling={"pooling_mode": "mean"}, Dense=dense)
    own = {"linear.weight": torch.zeros(8, 31), "linear.bias": torch.zeros(8)}
    save_file(own, folder / "2_Dense/model.safetensors")
    (reason,) = inspect(str(folder), EngineOptions(device="cpu")).refused
    assert "linear.weight" in reason
    assert reason.endswith("has shape [8, 31], the model needs [8, 32]")


QUANT, KV = "hf_quant_config.json", "kv_cache_quant_algo"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (QUANT, {"quant_algo": "NVFP4"}, 'quantization.quant_algo "NVFP4"'),
        (QUANT, {"quant_algo": None, KV: "NVFP4"}, f'quantization.{KV} "NVFP4"'),
        ("quantize_config.json", None, "quantization to 4 bits"),
        (QUANT, {"quant_algo": None}, None),
    ],
)
def test_files_of_quantization(
    tmp_path: Path, name: str, content: dict[str, Any] | None, reason: str | None
) -> None:
    write_json(tmp_path / "config.json", LLAMA)
    write_json(tmp_path / name, {"quantization": content} if content else {"bits": 4})
    refused = inspect(str(tmp_path), EngineOptions(device="cpu")).refused
    told = [line for line in refused if " is missing from " not in line]
    expected = [f"{tmp_path / name}: {reason} is not supported"]
    assert told == ([] if reason is None else expected)


def test_what_is_said_of_fp8(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "llama", LLAMA)
    quantise(folder, save_llama(folder), FORMATS["compressed_channel"])
    found = inspect(str(folder), EngineOptions(device="cpu"))
    assert found.refused == ()
    assert found.model is not None
    own = found.model.quantization
    assert own is not None
    assert own.format.startswith("compressed-tensors: weights in FP8, a scale for each channel")
    stored = folder / "model.safetensors"
    size = stored.stat().st_size
    assert (own.stored_bytes, own.runs_as) == (size, "FP8 on CUDA, dequantised to --dtype on a CPU")
    # A byte less for each on a GPU.
    in_fp8 = 2 * found.model.parameters - found.model.weight_bytes
    weights = load_file(stored).items()
    products = sum(own.numel() for name, own in weights if name.endswith("_proj.weight"))
    assert in_fp8 == pytest.approx(products, rel=0.01), "norms, too, count as their layers do"


def test_fp8_made_at_load(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "llama", LLAMA)
    options = EngineOptions(device="cpu", quantization="fp8")
    found = inspect(str(folder), options)
    assert (found.refused, found.model and found.model.quantization is not None) == ((), True)
    config = {"quant_method": "fbgemm_fp8"}
    write_json(folder / "config.json", LLAMA | {"quantization_config": config})
    with pytest.raises(SetupError, match=r"^--quantization: .* quantised already \(fbgemm_fp8\)$"):
        set_up(folder, quantization="fp8", load_format="dummy")
