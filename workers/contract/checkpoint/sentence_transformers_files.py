"""Reads the files of sentence-transformers beside a model: its modules and their settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from workers.contract.model_config import (
    ModelConfigError,
    PoolingConfig,
    PoolingMode,
    Similarity,
    SpladeActivation,
    SpladeConfig,
    SpladeStrategy,
    decoded,
    read_json,
)

MODULES_FILE = "modules.json"
TRANSFORMER_FILE = "sentence_bert_config.json"
MODEL_FILE = "config_sentence_transformers.json"

_POOLING_MODES: dict[str, PoolingMode] = {
    "cls": "cls",
    "mean": "mean",
    "max": "max",
    "lasttoken": "last",
}
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Before version 5.4 the library wrote one key for each mode."""


class Module(msgspec.Struct):
    """An entry of modules.json: `type` is a dotted class name, `path` a folder."""

    type: str
    path: str

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]


class TransformerFile(msgspec.Struct):
    """The keys of sentence_bert_config.json that are supported."""

    max_seq_length: int | None = None
    do_lower_case: bool = False


class ModelFile(msgspec.Struct):
    """The keys of config_sentence_transformers.json that are supported."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None
    similarity_fn_name: Similarity | None = None
    activation_fn: str | None = None

    @property
    def default_prompt(self) -> str:
        return (self.prompts or {}).get(self.default_prompt_name or "") or ""


def read_modules(folder: Path) -> list[Module]:
    """The modules in order; empty without `modules.json`. Raises ModelConfigError."""
    file = folder / MODULES_FILE
    return decoded(file, list[Module]) if file.exists() else []


def read_transformer_file(folder: Path) -> TransformerFile:
    """Defaults if there is no such file. Raises ModelConfigError."""
    file = folder / TRANSFORMER_FILE
    return decoded(file, TransformerFile) if file.exists() else TransformerFile()


def read_model_file(folder: Path) -> ModelFile:
    """Defaults if there is no such file. Raises ModelConfigError."""
    file = folder / MODEL_FILE
    settings = decoded(file, ModelFile) if file.exists() else ModelFile()
    default = settings.default_prompt_name
    if default is not None and default not in (settings.prompts or {}):
        raise ModelConfigError(f"{file}: default_prompt_name {default!r} is none of its prompts")
    return settings


def read_pooling(folder: Path, modules: Sequence[Module]) -> PoolingConfig:
    """The Pooling and Normalize modules.

    Without modules: mean pooling, not normalised, as in the library. Raises ModelConfigError.
    """
    pooling = _module(modules, "Pooling")
    file = folder / (pooling.path if pooling else "") / "config.json"
    raw = read_json(file) if pooling else {}
    return PoolingConfig(
        mode=_pooling_mode(file, raw),
        normalize=_module(modules, "Normalize") is not None,
        include_prompt=bool(raw.get("include_prompt", True)),
    )


def _pooling_mode(file: Path, raw: dict[str, Any]) -> PoolingMode:
    named: str | list[str] | None = raw.get("pooling_mode")
    if named is None:
        named = [mode for flag, mode in _POOLING_FLAGS.items() if raw.get(flag)] or "mean"
    modes = [named] if isinstance(named, str) else named
    if len(modes) == 1 and modes[0] in _POOLING_MODES:
        return _POOLING_MODES[modes[0]]
    known = ", ".join(_POOLING_MODES)
    raise ModelConfigError(
        f"{file}: pooling_mode {' + '.join(modes)} is not supported (one of {known})"
    )


class _SpladePooling(msgspec.Struct):
    """The keys of a SpladePooling module's configuration that are supported."""

    pooling_strategy: SpladeStrategy = "max"
    activation_function: SpladeActivation = "relu"


def read_splade(folder: Path, modules: Sequence[Module]) -> SpladeConfig:
    """The SpladePooling module, or its defaults if there is none. Raises ModelConfigError."""
    module = _module(modules, "SpladePooling")
    if module is None:
        return SpladeConfig()
    raw = decoded(folder / module.path / "config.json", _SpladePooling)
    return SpladeConfig(strategy=raw.pooling_strategy, activation=raw.activation_function)


def _module(modules: Sequence[Module], kind: str) -> Module | None:
    return next((module for module in modules if module.kind == kind), None)
