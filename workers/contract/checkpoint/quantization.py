"""Refuses quantized checkpoints, by what their files declare."""

from pathlib import Path
from typing import Any

import msgspec

from workers.contract.config_keys.bookkeeping import NOT_SUPPORTED
from workers.contract.config_keys.keys import ConfigKeys, Refuse
from workers.contract.model_config import ModelConfigError, decoded, read_json

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
    if methods := _of_modelopt(folder / _MODELOPT_FILE):
        reason = f"quantization by {' and '.join(methods)} is not supported"
        refuse(ModelConfigError(f"{folder / _MODELOPT_FILE}: {reason}"))
    if (file := folder / _GPTQ_FILE).exists():
        bits = read_json(file).get("bits", "few")
        refuse(ModelConfigError(f"{file}: quantization to {bits} bits is not supported"))


def _of_modelopt(file: Path) -> list[str]:
    """How TensorRT Model Optimizer quantized weights, and keys and values."""
    quantization = decoded(file, _ModelOptFile).quantization if file.exists() else {}
    keys = {"quant_algo": "", "kv_cache_quant_algo": " (keys and values)"}
    return [f"{quantization[key]}{of}" for key, of in keys.items() if quantization.get(key)]
