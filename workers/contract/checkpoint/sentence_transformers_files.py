"""Reads the files of sentence-transformers beside a model: its modules and their settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from workers.contract.checkpoint.folder_files import optional
from workers.contract.model_config import ModelConfigError, Similarity

MODULES_FILE = "modules.json"
MODEL_FILE = "config_sentence_transformers.json"

_TRANSFORMER_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
"""The library takes the first that says anything."""


class Module(msgspec.Struct):
    """An entry of modules.json: `type` is a dotted class name, `path` a folder."""

    type: str
    path: str

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]

    @property
    def config_file(self) -> Path:
        """Its configuration, seen from the model's folder."""
        return Path(self.path, "config.json")


class TransformerFile(msgspec.Struct):
    """The keys of the first module's settings that are supported."""

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
    return optional(folder, MODULES_FILE, list[Module]) or []


def transformer_file(folder: Path) -> str:
    """The settings of the first module, which may be missing. Raises ModelConfigError."""
    names = _TRANSFORMER_FILES
    return next((name for name in names if optional(folder, name, dict[str, Any])), names[0])


def read_transformer_file(folder: Path) -> TransformerFile:
    """Defaults if there is no such file. Raises ModelConfigError."""
    return optional(folder, transformer_file(folder), TransformerFile) or TransformerFile()


def read_model_file(folder: Path) -> ModelFile:
    """Defaults if there is no such file. Raises ModelConfigError."""
    settings = optional(folder, MODEL_FILE, ModelFile) or ModelFile()
    default = settings.default_prompt_name
    if default is not None and default not in (settings.prompts or {}):
        raise ModelConfigError(
            f"{folder / MODEL_FILE}: default_prompt_name {default!r} is none of its prompts"
        )
    return settings


def module_of(modules: Sequence[Module], kind: str) -> Module | None:
    """The module of this kind, None without one."""
    return next((module for module in modules if module.kind == kind), None)
