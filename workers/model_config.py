"""A checkpoint's shape, read as data from the files beside its weights (no torch)."""

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

PoolingMode = Literal["cls", "mean", "max", "last"]
ValueT = TypeVar("ValueT")
RopeType = Literal["default", "linear", "llama3"]

_POOLING_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


class ModelConfigError(ValueError):
    """A checkpoint's configuration is missing, unreadable or not supported; one line says why."""


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position embedding: base, and the scaling of its frequencies.

    `llama3` is Llama 3.1's scaling by wavelength; `linear` divides every frequency by `factor`.
    """

    theta: float = 10_000.0
    type: RopeType = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


class PoolingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an embedder turns token states into one vector (sentence-transformers' modules)."""

    mode: PoolingMode = "mean"
    normalize: bool = True


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture needs to build its layers. Lengths in tokens, sizes in elements."""

    path: str
    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    max_model_len: int
    hidden_act: str
    norm_eps: float
    initializer_range: float
    checkpoint_dtype: str
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    rope: RopeConfig
    type_vocab_size: int
    num_labels: int
    sigmoid_scores: bool
    pooling: PoolingConfig


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelConfigError, naming the file, where there is none."""
    return _decoded(path, dict[str, Any])


def _decoded(path: Path, kind: type[ValueT]) -> ValueT:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise ModelConfigError(f"{path.name} is missing from {path.parent}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelConfigError(f"{path} cannot be read: {error}") from None


def read_model_config(path: Path) -> ModelConfig:
    """Read `config.json` and, for embedders, the sentence-transformers files in folder `path`.

    Raises ModelConfigError if a file or a needed key is missing or of the wrong type.
    """
    raw = read_json(path / "config.json")
    try:
        return _model_config(path, raw)
    except ModelConfigError:
        raise
    except KeyError as error:
        raise ModelConfigError(f"{path / 'config.json'} has no {error}") from None
    except (TypeError, ValueError) as error:
        raise ModelConfigError(f"{path / 'config.json'} is not valid: {error}") from None


def _model_config(path: Path, raw: dict[str, Any]) -> ModelConfig:
    architectures: list[str] = raw.get("architectures") or []
    if not architectures:
        raise ModelConfigError(f"{path / 'config.json'} names no architecture")
    hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    max_position = int(raw["max_position_embeddings"])
    sentence = _optional_json(path / "sentence_bert_config.json")
    return ModelConfig(
        path=str(path),
        architecture=architectures[0],
        vocab_size=int(raw["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        max_position=max_position,
        max_model_len=min(int(sentence.get("max_seq_length") or max_position), max_position),
        hidden_act=str(raw.get("hidden_act", "gelu")),
        norm_eps=float(raw.get("rms_norm_eps", raw.get("layer_norm_eps", 1e-12))),
        initializer_range=float(raw.get("initializer_range", 0.02)),
        checkpoint_dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        rope=_rope_config(raw),
        type_vocab_size=int(raw.get("type_vocab_size", 0)),
        num_labels=_num_labels(raw),
        sigmoid_scores=_sigmoid_scores(raw),
        pooling=_pooling_config(path),
    )


def _rope_config(raw: dict[str, Any]) -> RopeConfig:
    """transformers 5 writes `rope_parameters`, earlier versions `rope_theta` + `rope_scaling`."""
    scaling: dict[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise ModelConfigError(f"rope type {kind!r} is not supported (default, linear, llama3)")
    return RopeConfig(
        theta=float(scaling.get("rope_theta", raw.get("rope_theta", 10_000.0))),
        type=kind,
        factor=float(scaling.get("factor", 1.0)),
        low_freq_factor=float(scaling.get("low_freq_factor", 1.0)),
        high_freq_factor=float(scaling.get("high_freq_factor", 4.0)),
        original_max_position=int(scaling.get("original_max_position_embeddings", 8192)),
    )


def _num_labels(raw: dict[str, Any]) -> int:
    labels: dict[str, str] | None = raw.get("id2label")
    return len(labels) if labels else int(raw.get("num_labels", 2))


def _sigmoid_scores(raw: dict[str, Any]) -> bool:
    """sentence-transformers' rule: one label goes through a sigmoid unless it says identity."""
    settings: dict[str, Any] = raw.get("sentence_transformers") or {}
    declared = settings.get("activation_fn", raw.get("sbert_ce_default_activation_function", ""))
    return _num_labels(raw) == 1 and not str(declared).endswith("Identity")


class _Module(msgspec.Struct):
    """An entry of sentence-transformers' modules.json; `type` is a dotted class name."""

    type: str
    path: str


def _pooling_config(path: Path) -> PoolingConfig:
    """The Pooling and Normalize modules of a sentence-transformers folder.

    A folder without them is pooled by the mean and not normalised, as sentence-transformers does.
    """
    modules_file = path / "modules.json"
    if not modules_file.exists():
        return PoolingConfig(mode="mean", normalize=False)
    modules = _decoded(modules_file, list[_Module])
    kinds = {module.type.rsplit(".", 1)[-1]: module.path for module in modules}
    raw = read_json(path / kinds["Pooling"] / "config.json") if "Pooling" in kinds else {}
    return PoolingConfig(mode=_pooling_mode(raw), normalize="Normalize" in kinds)


def _pooling_mode(raw: dict[str, Any]) -> PoolingMode:
    named = raw.get("pooling_mode")
    modes = [named] if named else [mode for flag, mode in _POOLING_FLAGS.items() if raw.get(flag)]
    if not modes:
        return "mean"
    for known in _POOLING_FLAGS.values():
        if modes == [known]:
            return known
    known = ", ".join(_POOLING_FLAGS.values())
    raise ModelConfigError(f"pooling {modes} is not supported (one of {known})")


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}
