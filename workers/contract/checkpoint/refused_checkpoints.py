"""Refuses checkpoints that no family serves: quantized ones, adapters, and unknown code.

Code that comes with a checkpoint (`auto_map` in its `config.json`) is never run.
"""

from pathlib import Path
from typing import Any

import msgspec

from workers.contract.checkpoint.folder_files import find_file, optional
from workers.contract.checkpoint.other_formats import ADAPTER_FILE
from workers.contract.config import Task
from workers.contract.config_keys.bookkeeping import NOT_SUPPORTED
from workers.contract.config_keys.keys import ConfigKeys, Refuse
from workers.contract.families.base import Family
from workers.contract.model_config import ModelConfigError

_MODELOPT_FILE = "hf_quant_config.json"
_GPTQ_FILE = "quantize_config.json"


def check_servable(
    keys: ConfigKeys, folder: Path, family: Family, task: Task, refuse: Refuse
) -> None:
    """Refuse what no family can do. Raises ModelConfigError."""
    _check_quantization(keys, folder, refuse)
    _check_own_code(keys, family, task, refuse)
    if file := find_file(folder, ADAPTER_FILE):
        reason = "adapters are not supported; merge it into the weights"
        refuse(ModelConfigError(f"{file}: {reason}"))


def own_models(keys: ConfigKeys) -> tuple[str, ...]:
    """The classes of models that the checkpoint brings, such as `modeling_qwen.Qwen2Model`. Raises
    ModelConfigError."""
    classes = keys.read("auto_map", dict[str, Any], {})
    own = (str(path) for name, path in classes.items() if name.startswith("AutoModel"))
    return tuple(dict.fromkeys(own))


def _check_own_code(keys: ConfigKeys, family: Family, task: Task, refuse: Refuse) -> None:
    """Refuse an embedder or a reranker with a model of its own that the family does not know.

    Under the name of a known architecture such code often attends in both directions. A generator's
    cannot: it is an earlier form of what transformers has today.
    """
    unknown = [own for own in own_models(keys) if _module(own) not in family.known_code]
    if unknown and task != "generate":
        reason = (
            f"names {unknown[0]}: code that comes with a checkpoint is never run, and this may "
            f"compute another model than {family.name}; if it does not, ignore_config_keys may "
            "name auto_map"
        )
        refuse(keys.refusal("auto_map", reason))


def _module(path: str) -> str:
    """`modeling_qwen` of `owner/name--modeling_qwen.Qwen2Model`."""
    return path.rpartition("--")[2].rpartition(".")[0]


class _ModelOptFile(msgspec.Struct):
    """The key of hf_quant_config.json with the algorithms."""

    quantization: dict[str, Any] = {}


def _check_quantization(keys: ConfigKeys, folder: Path, refuse: Refuse) -> None:
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
