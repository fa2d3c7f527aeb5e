"""MXFP4 against NumPy, and gpt-oss in it against transformers with the same numbers in float32."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.workers.checkpoints import load_share, worker_config
from tests.workers.equivalence import check_way
from tests.workers.inline_engine import Way
from tests.workers.models.expert_decoders import EXPERT_DECODERS
from tests.workers.models.test_decoders import taught
from tests.workers.models.tiny_models import TinyModel, TinyModels
from workers.contract.model_config import ModelConfigError
from workers.kernels.linear.fused import Mxfp4Weight
from workers.layers.mxfp4_method import dequantised
from workers.weights.loader import faults

QUANTIZATION = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}


def numbers(blocks: npt.NDArray[Any], scales: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """By the format: sign, two bits of exponent with a bias of 1, one of mantissa; [..., G, 16] and
    [..., G] -> [..., 32 G]."""
    nibbles = np.stack([blocks & 15, blocks >> 4], axis=-1).astype(np.int64)
    sign, exponent, mantissa = nibbles >> 3, (nibbles >> 1) & 3, nibbles & 1
    normal = (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    size = np.where(exponent == 0, mantissa / 2, normal)
    wide = np.where(sign == 1, -size, size).reshape(*blocks.shape[:-1], 32)
    scaled = wide * 2.0 ** (scales.astype(np.int64) - 127)[..., None]
    return scaled.reshape(*scales.shape[:-1], -1)


def test_every_number_and_scale() -> None:
    blocks = np.arange(256, dtype=np.uint8).reshape(16, 1, 16)
    for scale in (0, 1, 100, 127, 140, 254):
        scales = np.full((16, 1), scale, np.uint8)
        weight = Mxfp4Weight(torch.from_numpy(blocks).flatten(1), torch.from_numpy(scales))
        want = torch.from_numpy(numbers(blocks, scales)).float()
        torch.testing.assert_close(dequantised(weight, torch.float32), want, rtol=0, atol=0)


TINY = TinyModel(
    architecture="GptOssForCausalLM",
    config={**EXPERT_DECODERS["gpt_oss"].config, "intermediate_size": 32},
)


class InFp4(TinyModels):
    """transformers' models, whose experts are written in MXFP4, and have its numbers."""

    def __call__(self, tiny: TinyModel) -> tuple[Path, Any]:
        made = id(tiny) in self._made
        folder, model = super().__call__(tiny)
        if not made:
            to_fp4(folder, model)
        return folder, model


def to_fp4(folder: Path, model: Any) -> None:
    draw, tensors = np.random.default_rng(3), load_file(folder / "model.safetensors")
    parameters = dict(model.named_parameters())
    for name in [name for name in tensors if re.search(r"experts\.\w+_proj$", name)]:
        count, inputs, outputs = tensors.pop(name).shape
        shape = (count, outputs, inputs // 32)
        blocks = draw.integers(0, 256, (*shape, 16), dtype=np.uint8)
        scales = draw.integers(121, 124, shape, dtype=np.uint8)
        with torch.no_grad():
            wide = torch.from_numpy(numbers(blocks, scales)).float()
            parameters[name].copy_(wide.transpose(1, 2))
        tensors[f"{name}_blocks"] = torch.from_numpy(blocks)
        tensors[f"{name}_scales"] = torch.from_numpy(scales)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = QUANTIZATION
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def in_fp4(tmp_path_factory: pytest.TempPathFactory) -> InFp4:
    return InFp4(tmp_path_factory.mktemp("mxfp4"))


@pytest.mark.parametrize("stages", [1, 3])
def test_gpt_oss(in_fp4: InFp4, stages: int) -> None:
    check_way(taught(in_fp4, TINY), Way(stages=stages, depth=stages + 1, max_step_tokens=40))


def test_a_tensor_of_another_type_is_named(in_fp4: InFp4, tmp_path: Path) -> None:
    folder, _ = in_fp4(TINY)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    tensors[name] = tensors[name].float()
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelConfigError, match=rf"{name} in .* says MXFP4, in bytes"):
        load_share(worker_config(tmp_path))


@pytest.mark.parametrize(("byte", "said"), [(255, "nan"), (193, r"2 \*\* 66")])
def test_what_is_no_scale_is_named(in_fp4: InFp4, tmp_path: Path, byte: int, said: str) -> None:
    folder, _ = in_fp4(TINY)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    tensors[name][2, 5] = byte
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelConfigError, match=rf"{name} in .* holds {said}: a scale") as error:
        load_share(worker_config(tmp_path))
    assert [*faults(worker_config(tmp_path).execution)] == [str(error.value)]


def test_inputs_that_are_no_whole_groups_are_refused(in_fp4: InFp4, tmp_path: Path) -> None:
    folder, _ = in_fp4(TINY)
    config = json.loads((folder / "config.json").read_text()) | {"intermediate_size": 40}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelConfigError, match=r"experts\.0\.down_proj has 40 inputs, not whole"):
        load_share(worker_config(tmp_path, load_format="dummy"))
