"""Refuses quantized checkpoints, by what their files declare."""

from pathlib import Path
from typing import Any

import msgspec

from workers.contract.checkpoint.folder_files import optional
from workers.contract.config_keys.bookkeeping import NOT_SUPPORTED
from workers.contract.config_keys.keys import ConfigKeys, Refuse
from workers.contract.model_config import ModelConfigError

_MODELOPT_FILE = "hf_quant_config.json"
_GPTQ_FILE = "quantize_config.json"


class _ModelOptFile(msgspec.Struct):
    """The key of hf_quant_config.json with the algorithms."""

    quantization: dict[str, Any] = {}


def check_quantization(keys: ConfigKeys, folder: Path, refuse: Refuse) -> None:
    """Refuse what `config.json` declares, or a file beside it. Raises ModelConfigError."""
    quantization = keys.read("quantization_config", dict[str, Any], {})
    others = dict(NOT_SUPPORTED)
    if method := quantization.get("quant_method"):
        del others["quantization_config"]
        reason = f"with the method {method!r} is not supported"
        refuse(keys.refusal("quantization_config", reason))
    keys.neutral(others)
    if methods := _of_modelopt(folder):
        reason = f"quantization by {' and '.join(methods)} is not supported"
        refuse(ModelConfigError(f"{folder / _MODELOPT_FILE}: {reason}"))
    gptq = optional(folder, _GPTQ_FILE, dict[str, Any])
    if gptq is not None:
        reason = f"quantization to {gptq.get('bits', 'few')} bits is not supported"
        refuse(ModelConfigError(f"{folder / _GPTQ_FILE}: {reason}"))


def _of_modelopt(folder: Path) -> list[str]:
    """How TensorRT Model Optimizer quantized weights, and keys and values."""
    quantization = (optional(folder, _MODELOPT_FILE, _ModelOptFile) or _ModelOptFile()).quantization
    keys = {"quant_algo": "", "kv_cache_quant_algo": " (keys and values)"}
    return [f"{quantization[key]}{of}" for key, of in keys.items() if quantization.get(key)]
