"""Checkpoints in FP8 as published ones are laid out, made from those of transformers.

The layouts are those of llm-compressor, AutoFP8, transformers, Meta (fbgemm) and ModelOpt.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FILE = "model.safetensors"
FP8 = torch.float8_e4m3fn
LAYER_PARTS = ("_proj.weight", ".dense.weight", ".query.weight", ".key.weight", ".value.weight")
BLOCK_SIZES: dict[str, Any] = {
    "hidden_size": 192,
    "head_dim": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
}
"""Of a Llama with blocks that end before they are full, in both directions."""


@dataclass(frozen=True, kw_only=True)
class Fp8Format:
    """A layout.

    config      `quantization_config` in config.json, if any
    modelopt    `quantization` in hf_quant_config.json, if any
    ignore      the key with the layers that stay as they are: "name" for whole names
    scales      "tensor", "channel" or "block"
    ones        how many more dimensions, of size 1, scales have
    others      tensors beside the model's, which nothing reads
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    modelopt: Mapping[str, Any] = field(default_factory=dict)
    ignore: str
    scales: str
    scale_name: str = "weight_scale"
    input_name: str | None = None
    ones: int = 0
    scale_dtype: torch.dtype = torch.float32
    others: tuple[str, ...] = ()


def arguments(strategy: str, *, dynamic: bool = False, **changes: Any) -> dict[str, Any]:
    """compressed-tensors' `QuantizationArgs`, with all that llm-compressor writes."""
    return {
        "actorder": None,
        "block_structure": None,
        "dynamic": dynamic,
        "group_size": None,
        "num_bits": 8,
        "observer": None if dynamic else "minmax",
        "observer_kwargs": {},
        "scale_dtype": None,
        "strategy": strategy,
        "symmetric": True,
        "type": "float",
        "zp_dtype": None,
    } | changes


def compressed(
    weights: Mapping[str, Any], activations: Mapping[str, Any] | None, **changes: Any
) -> dict[str, Any]:
    """compressed-tensors' configuration with one group."""
    group = {
        "format": "float-quantized",
        "input_activations": activations,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": "float-quantized",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.13.0",
    } | changes


_STATIC, _TOKEN = arguments("tensor"), arguments("token", dynamic=True)
_BLOCKS = arguments("block", block_structure=[128, 128])
_GROUPS = arguments("group", dynamic=True, group_size=128)
_KV_SCALES = tuple(f"model.layers.{i}.self_attn.{part}_scale" for i in range(2) for part in "kv")
_KV_PROJ_SCALES = tuple(
    f"model.layers.{i}.self_attn.{part}_proj.{part}_scale" for i in range(2) for part in "kv"
)
_MODELOPT = {"quant_algo": "FP8", "kv_cache_quant_algo": None}
_MODELOPT_FLAT = {
    "config_groups": {"group_0": {"targets": ["Linear"]}},
    "producer": {"name": "modelopt", "version": "0.33.0"},
    "quant_algo": "FP8",
    "quant_method": "modelopt",
}

FORMATS: dict[str, Fp8Format] = {
    "compressed_static": Fp8Format(
        config=compressed(_STATIC, _STATIC, kv_cache_scheme=_STATIC),
        ignore="ignore",
        scales="tensor",
        ones=1,
        scale_dtype=torch.bfloat16,
        input_name="input_scale",
        others=_KV_SCALES,
    ),
    "compressed_tensor": Fp8Format(
        config=compressed(_STATIC, _TOKEN), ignore="ignore", scales="tensor"
    ),
    "compressed_channel": Fp8Format(
        config=compressed(arguments("channel"), _TOKEN, format="naive-quantized"),
        ignore="ignore",
        scales="channel",
        ones=1,
    ),
    "compressed_block": Fp8Format(
        config=compressed(_BLOCKS, _GROUPS), ignore="ignore", scales="block"
    ),
    "transformers_block": Fp8Format(
        config={
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
        ignore="modules_to_not_convert",
        scales="block",
        scale_name="weight_scale_inv",
    ),
    "transformers_static": Fp8Format(
        config={
            "activation_scheme": "static",
            "dequantize": False,
            "quant_method": "fp8",
            "weight_block_size": None,
        },
        ignore="modules_to_not_convert",
        scales="tensor",
        ones=2,
        scale_name="weight_scale_inv",
        input_name="activation_scale",
    ),
    "autofp8_static": Fp8Format(
        config={"activation_scheme": "static", "kv_cache_scheme": "static", "quant_method": "fp8"},
        ignore="ignored_layers",
        scales="tensor",
        ones=1,
        input_name="input_scale",
        others=_KV_SCALES,
    ),
    "autofp8_dynamic": Fp8Format(
        config={"activation_scheme": "dynamic", "quant_method": "fp8"},
        ignore="ignored_layers",
        scales="tensor",
    ),
    "fbgemm": Fp8Format(
        config={"activation_scale_ub": 1200.0, "quant_method": "fbgemm_fp8"},
        ignore="modules_to_not_convert",
        scales="channel",
        ones=1,
    ),
    "modelopt": Fp8Format(
        modelopt=_MODELOPT | {"kv_cache_quant_algo": "FP8"},
        ignore="exclude_modules",
        scales="tensor",
        input_name="input_scale",
        others=_KV_PROJ_SCALES,
    ),
    "modelopt_in_config": Fp8Format(
        config=_MODELOPT_FLAT, ignore="ignore", scales="tensor", input_name="input_scale"
    ),
    "modelopt_in_both": Fp8Format(
        config=_MODELOPT_FLAT,
        modelopt=_MODELOPT,
        ignore="ignore",
        scales="tensor",
        input_name="input_scale",
    ),
    "modelopt_channel": Fp8Format(
        modelopt={"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN", "kv_cache_quant_algo": None},
        ignore="exclude_modules",
        scales="channel",
    ),
}


def quantise(folder: Path, model: Any, layout: Fp8Format, *, ignored: tuple[str, ...] = ()) -> None:
    """Rewrite what `model` of transformers was saved as, and give `model` the weights that the
    files then stand for. `ignored` layers stay as they are, and so does the LM head."""
    tensors, parameters = load_file(folder / FILE), dict(model.named_parameters())
    drawn = torch.Generator().manual_seed(3)
    for name in [name for name in tensors if name.endswith(LAYER_PARTS)]:
        layer = name.removesuffix(".weight")
        if layer in ignored:
            continue
        weight = tensors[name]
        scales = _scales(weight, layout.scales, drawn)
        if layout.scale_dtype != torch.float32:
            scales = scales.to(layout.scale_dtype).float()
        whole = _whole(scales, weight)
        values = (weight / whole).clamp(-448, 448).to(FP8)
        tensors[name] = values
        stored = scales.view([*scales.shape, *[1] * layout.ones])
        tensors[f"{layer}.{layout.scale_name}"] = stored.to(layout.scale_dtype)
        if layout.input_name:
            tensors[f"{layer}.{layout.input_name}"] = 0.01 + torch.rand((), generator=drawn)
        with torch.no_grad():
            parameters[name].copy_(values.float() * whole)
    save_file(tensors | {name: torch.ones(()) for name in layout.others}, folder / FILE)
    write_quantization(folder, layout, ("lm_head", *ignored))


def write_quantization(folder: Path, layout: Fp8Format, ignored: tuple[str, ...]) -> None:
    """Say so in the configuration. ModelOpt's two files name the same layers."""
    config = json.loads((folder / "config.json").read_text())
    if layout.config:
        config["quantization_config"] = {**layout.config, layout.ignore: list(ignored)}
    (folder / "config.json").write_text(json.dumps(config))
    if layout.modelopt:
        own = {**layout.modelopt, "exclude_modules": list(ignored)}
        file = {"producer": {"name": "modelopt", "version": "0.33.0"}, "quantization": own}
        (folder / "hf_quant_config.json").write_text(json.dumps(file))


def _scales(weight: torch.Tensor, kind: str, drawn: torch.Generator) -> torch.Tensor:
    """Unequal ones, up to four times as large as they had to be."""
    count = {"tensor": (), "channel": weight.shape[:1]}
    count["block"] = tuple(-(-size // 128) for size in weight.shape)
    return weight.abs().amax() / 448 * (1 + 3 * torch.rand(count[kind], generator=drawn))


def _whole(scales: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A scale for each weight."""
    if scales.dim() < 2:
        return scales.view(-1, 1).expand(weight.shape[0] if scales.dim() else 1, 1)
    rows, columns = (torch.arange(size) // 128 for size in weight.shape)
    return scales[rows][:, columns]
