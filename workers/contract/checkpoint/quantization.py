"""Reads how a checkpoint's weights are quantised: FP8 in the forms of four tools, and MXFP4.

In `quantization_config` (or `compression_config`) of `config.json`: compressed-tensors (written by
llm-compressor), transformers' own `fp8` (DeepSeek-V3, arXiv:2412.19437; Qwen3-FP8; and AutoFP8's
form of it), `fbgemm_fp8`, and ModelOpt, which also has a file of its own. A scheme that is not
served is refused by its key.
"""

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from workers.contract.checkpoint.config_keys import NOT_SUPPORTED, ConfigKeys, each
from workers.contract.checkpoint.folder_files import optional
from workers.contract.model_config import ModelConfigError
from workers.contract.quantization import BLOCK, ActivationScales, Quantization, WeightScales

_KEYS = ("quantization_config", "compression_config")
_MODELOPT_FILE = "hf_quant_config.json"
_GPTQ_FILE = "quantize_config.json"

_MOST_REPEATS = 6
"""The most repetitions in an expression for names of layers. Some millions of ways to match one are
tried at worst: a name has some 40 characters."""


def read_quantization(keys: ConfigKeys) -> Quantization | None:
    """How the checkpoint of a `config.json` is quantised. None if it is not.

    Methods and schemes that are not served go to `keys.refuse`. Raises ModelConfigError for what
    cannot be read, and if two files differ.
    """
    folder, others = keys.file.parent, dict(NOT_SUPPORTED)
    found: list[Quantization | None] = []
    for key in _KEYS:
        own = keys.read(key, dict[str, Any], {})
        # The first versions of ModelOpt name no method.
        if not (method := own.get("quant_method") or ("quant_algo" in own and "modelopt")):
            continue
        del others[key]
        if str(method) in _READERS:
            found.append(_read(keys.nested(key), str(method)))
        else:
            keys.refuse_key(key, f"with the method {method!r} is not supported")
    keys.neutral(others)
    file = ConfigKeys.of_file(folder, _MODELOPT_FILE, keys.refuse)
    file.ignore("producer")
    if (inner := file.nested("quantization")).values:
        found.append(_read(inner, "modelopt"))
    file.check_all_read(reader="ModelOpt")
    gptq = optional(folder, _GPTQ_FILE, dict[str, Any])
    # A file of that name with this key is about ONNX files beside the weights (transformers.js).
    if gptq is not None and "per_channel" not in gptq:
        reason = f"quantization to {gptq.get('bits', 'few')} bits is not supported"
        keys.refuse(ModelConfigError(f"{folder / _GPTQ_FILE}: {reason}"))
    if len(set(found)) > 1:
        raise keys.error(f"its quantization is not that of {_MODELOPT_FILE}")
    return found[0] if found else None


def _read(keys: ConfigKeys, method: str) -> Quantization | None:
    keys.ignore("quant_method")
    read = _READERS[method](keys)
    for pattern in (*read.targets, *read.ignored):
        try:
            re.compile(pattern)
        except re.error as error:
            raise keys.error(f"{method}: {pattern!r} is no regular expression: {error}") from None
        if re.search(r"\)[*+{]", pattern) or len(re.findall(r"[*+{]", pattern)) > _MOST_REPEATS:
            raise keys.error(f"{method}: {pattern!r} might take too long to match names of layers")
    if (read.weights == "block") != (read.activations == "block"):
        scales = f"by {read.weights} with activations by {read.activations}"
        keys.refuse(keys.error(f"{method}: weights {scales} are not supported"))
    return read if read.of_weights or read.kv_cache_fp8 else None


def _names(names: Iterable[str]) -> tuple[str, ...]:
    """compressed-tensors' names of layers, whole ones or regular expressions after "re:"."""
    return tuple(name[3:] if name.startswith("re:") else re.escape(name) + "$" for name in names)


def _compressed_tensors(keys: ConfigKeys) -> Quantization:
    keys.ignore("version", "quantization_status", "global_compression_ratio")
    keys.neutral({"transform_config": (None, {})})
    sparsity = keys.nested("sparsity_config")
    sparsity.neutral(each("format", "dense", None))
    sparsity.ignore("global_sparsity", "ignore", "registry_requires_subclass")
    sparsity.ignore("sparsity_structure", "targets")
    groups, formats = keys.nested("config_groups"), ("float-quantized", "naive-quantized", None)
    keys.neutral({"format": formats if groups.values else ("dense", *formats)})
    schemes: dict[tuple[WeightScales, ActivationScales], str] = {}
    targets: list[str] = []
    for name in groups.values:
        group = groups.nested(name)
        group.neutral({"format": formats, "output_activations": (None,)})
        schemes.setdefault((_weights(group), _activations(group)), name)
        targets += group.required("targets", list[str])
    if len(schemes) > 1:
        first, other = [*schemes.values()][:2]
        keys.refuse_key("config_groups", f"differ in {first} and {other}: not supported")
    weights, activations = next(iter(schemes), ("tensor", "tensor"))
    return Quantization(
        method="compressed-tensors",
        weights=weights,
        activations=activations,
        targets=("",) if "Linear" in targets else _names(targets),
        ignored=_names(keys.read("ignore", list[str], [])),
        kv_cache_fp8=_kv_scheme(keys),
    )


def _arguments(group: ConfigKeys, name: str) -> ConfigKeys:
    """The `QuantizationArgs` at key `name`, which have to say FP8."""
    arguments = group.nested(name)
    arguments.assume({"num_bits": 8, "type": "int", "dynamic": False})
    arguments.neutral({"num_bits": (8,), "type": ("float",), "symmetric": (True, None)})
    arguments.neutral(each("actorder zp_dtype", None))
    arguments.ignore("observer", "observer_kwargs", "scale_dtype")
    return arguments


def _weights(group: ConfigKeys) -> WeightScales:
    arguments = _arguments(group, "weights")
    arguments.neutral({"dynamic": (False,)})
    arguments.ignore("group_size")
    blocks = arguments.values.get("strategy") == "block"
    shapes = ([BLOCK, BLOCK], f"{BLOCK}x{BLOCK}") if blocks else (None,)
    arguments.neutral({"block_structure": shapes})
    if blocks and not arguments.has("block_structure"):
        raise arguments.error("quantization of weights by block has no 'block_structure'")
    return arguments.choice(
        "strategy", {"tensor": "tensor", "channel": "channel", "block": "block"}, "tensor"
    )


def _activations(group: ConfigKeys) -> ActivationScales:
    if group.optional("input_activations", dict[str, Any]) is None:
        group.refuse_key("input_activations", "null (FP8 weights alone) is not supported")
        return "token"
    arguments = _arguments(group, "input_activations")
    arguments.neutral({"block_structure": (None,)})
    dynamic = arguments.read("dynamic", bool, False)
    if arguments.values.get("strategy") == "group":
        arguments.neutral({"group_size": (BLOCK,)})
    else:
        arguments.ignore("group_size")
    dynamically: dict[str, ActivationScales] = {"token": "token", "group": "block"}
    return arguments.choice("strategy", dynamically if dynamic else {"tensor": "tensor"}, "tensor")


def _kv_scheme(keys: ConfigKeys, *words: str) -> bool:
    """Whether keys and values are to be in FP8, as compressed-tensors says it or one of `words`."""
    scheme = keys.values.get("kv_cache_scheme")
    if scheme is None or isinstance(scheme, str):
        keys.neutral({"kv_cache_scheme": (*words, None)})
        return scheme is not None
    arguments = _arguments(keys, "kv_cache_scheme")
    arguments.neutral({"dynamic": (False,), "strategy": ("tensor", None)})
    arguments.neutral(each("block_structure group_size", None))
    return True


def _parts(names: Sequence[str]) -> tuple[str, ...]:
    """transformers' `modules_to_not_convert` (`should_convert_module`): beginnings of names up to a
    dot, as regular expressions, and ends of names."""
    boundary = r"(?:(?<=\.)|(?=\.|$))"
    ends = [f".*{re.escape(name)}$" for name in names]
    return (*(f"(?:{name}){boundary}" for name in names), *ends)


_USUAL_SCALES = ("weight_scale", "input_scale")
_TRANSFORMERS_SCALES = ("weight_scale_inv", "activation_scale")
"""Weights are multiplied by the former, too."""


def _fp8(keys: ConfigKeys) -> Quantization:
    """As transformers writes it, or AutoFP8: that names no blocks, not even null."""
    keys.neutral({"fmt": ("e4m3", "float8_e4m3fn", None), "scale_fmt": ("float", None)})
    keys.neutral({"dequantize": (False, None), "weight_block_size": ([BLOCK, BLOCK], None)})
    keys.neutral({"expert_dtype": ("fp8", None), "modules_to_convert": (None, [])})
    blocks = keys.values.get("weight_block_size") is not None
    keys.neutral({"weight_per_tensor": (not blocks, None), "act_per_tensor": (False, None)})
    dynamic: ActivationScales = "block" if blocks else "token"
    schemes: dict[str, ActivationScales] = {"dynamic": dynamic, "static": "tensor"}
    parts = keys.read("modules_to_not_convert", list[str], [])
    whole = keys.read("ignored_layers", list[str], [])
    return Quantization(
        method="fp8",
        weights="block" if blocks else "tensor",
        activations=keys.choice("activation_scheme", schemes, "dynamic"),
        scale_names=_TRANSFORMERS_SCALES if keys.has("weight_block_size") else _USUAL_SCALES,
        ignored=(*_parts([*parts, *whole]), *_names(whole)),
        kv_cache_fp8=_kv_scheme(keys, "static"),
    )


def _fbgemm(keys: ConfigKeys) -> Quantization:
    most = keys.read("activation_scale_ub", float, 1200.0)
    if most <= 0:
        raise keys.error(f"quantization_config.activation_scale_ub {most:g} is not more than 0")
    return Quantization(
        method="fbgemm_fp8",
        weights="channel",
        activations="token",
        most_amax=most,
        ignored=_parts(keys.read("modules_to_not_convert", list[str], [])),
    )


_MODELOPT: dict[str, tuple[WeightScales, ActivationScales]] = {
    "FP8": ("tensor", "tensor"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("channel", "token"),
}


def _modelopt(keys: ConfigKeys) -> Quantization:
    """ModelOpt's own file, or what it writes into `config.json`, where `config_groups` say the same
    as `quant_algo`."""
    keys.ignore("producer", "config_groups", "group_size")
    keys.neutral({"quant_algo": (*_MODELOPT, None), "kv_cache_quant_algo": ("FP8", None)})
    algorithm = str(keys.values.get("quant_algo"))
    weights, activations = _MODELOPT.get(algorithm, _MODELOPT["FP8"])
    names = keys.read("exclude_modules", list[str], []) + keys.read("ignore", list[str], [])
    return Quantization(
        method="modelopt",
        weights=weights,
        activations=activations,
        targets=("",) if algorithm in _MODELOPT else (),
        ignored=tuple(map(fnmatch.translate, names)),
        kv_cache_fp8=_kv_scheme(keys, "FP8") or bool(keys.values.get("kv_cache_quant_algo")),
    )


def _mxfp4(keys: ConfigKeys) -> Quantization:
    """As gpt-oss's checkpoints say it. transformers quantises experts alone, whatever else is not
    excluded."""
    keys.neutral({"dequantize": (False, None)})
    return Quantization(
        method="mxfp4",
        weights="group",
        activations="none",
        targets=(r".*\.experts\.",),
        ignored=_parts(keys.read("modules_to_not_convert", list[str], [])),
    )


_READERS: dict[str, Callable[[ConfigKeys], Quantization]] = {
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
}
