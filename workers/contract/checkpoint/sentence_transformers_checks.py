"""Refuses checkpoints whose sentence-transformers files need something that is not supported.

As of its version 6.2. Keys that the library does not know are ignored, as the library does.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workers.contract.checkpoint.folder_files import optional
from workers.contract.checkpoint.sentence_transformers_files import (
    MODEL_FILE,
    MODULES_FILE,
    Module,
    read_model_file,
    transformer_file,
)
from workers.contract.config_keys.bookkeeping import Neutral
from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.conventions import Conventions
from workers.contract.model_config import ModelConfigError

_LIBRARY = "sentence_transformers."
_MODELS = {"Transformer": "feature-extraction", "MLMTransformer": "fill-mask"}
"""Modules that run a model -> the task of each, unless its file names another."""

_OF_PROMPTS = ("modality_config", "processing_kwargs")
_ARGUMENTS = "model_args model_kwargs tokenizer_args processor_kwargs config_args config_kwargs"
_HARMLESS_ARGUMENTS = frozenset(
    "add_pooling_layer attn_implementation device_map dtype low_cpu_mem_usage padding_side "
    "torch_dtype trust_remote_code use_cache use_fast use_safetensors".split()
)
"""Arguments that change no numbers, or only their rounding."""


def check_sentence_transformers_files(
    folder: Path, modules: Sequence[Module], conventions: Conventions
) -> None:
    """Raises ModelConfigError, naming the file and its unsupported module or key."""
    if modules:
        _check_modules(folder, modules, conventions)
    task = _MODELS[modules[0].kind] if modules else conventions.task
    _check_transformer_file(folder, task, conventions)
    _check_model_file(folder, conventions)


def _check_modules(folder: Path, modules: Sequence[Module], conventions: Conventions) -> None:
    """A model in the folder itself comes first, then its pooling and what may follow that."""
    file = folder / MODULES_FILE
    pooling = [] if conventions.pooling is None else [conventions.pooling]
    for module in modules:
        known = module.kind in (*_MODELS, *pooling, *conventions.after_pooling)
        if not (known and module.type.startswith(_LIBRARY)):
            raise ModelConfigError(f"{file}: module {module.type} is not supported")
    kinds = [module.kind for module in modules]
    start, rest = [kinds[0] in _MODELS, *kinds[1 : 1 + len(pooling)]], kinds[1 + len(pooling) :]
    if start != [True, *pooling] or not set(rest) <= set(conventions.after_pooling):
        needed = ", ".join(("Transformer", *pooling))
        raise ModelConfigError(f"{file}: {', '.join(kinds)} do not begin with {needed}")
    if Path(modules[0].path) != Path():
        raise ModelConfigError(f"{file}: a model in {modules[0].path!r} is not supported")


def _check_transformer_file(folder: Path, task: str, conventions: Conventions) -> None:
    text = {"method": "forward", "method_output_name": conventions.output}
    neutral: Neutral = {
        "transformer_task": (conventions.task,),
        "modality_config": ({"text": text}, None),
        "module_output_name": (conventions.output_name, None),
        "processing_kwargs": ({}, None),
        "query_length": (None,),
        "document_length": (None,),
        "query_expansion": (None,),
        "tokenizer_name_or_path": (None,),
    }
    if conventions.templated:
        neutral = {key: own for key, own in neutral.items() if key not in _OF_PROMPTS}
    name = transformer_file(folder)
    own = optional(folder, name, dict[str, Any]) or {}
    file = folder / name
    keys = ConfigKeys(file, {"transformer_task": task, **own})
    keys.neutral(neutral)
    for key in _ARGUMENTS.split():
        arguments = keys.read(key, dict[str, Any], {})
        others = {name: (None,) for name in arguments if name not in _HARMLESS_ARGUMENTS}
        ConfigKeys(file, arguments).neutral(others)


def _check_model_file(folder: Path, conventions: Conventions) -> None:
    file = folder / MODEL_FILE
    neutral: Neutral = {
        "model_type": (conventions.library_class,),
        "truncate_dim": (None,),
        "max_active_dims": (None,),
    }
    ConfigKeys(file, optional(folder, MODEL_FILE, dict[str, Any]) or {}).neutral(neutral)
    if conventions.templated:
        return
    if conventions.pooling is None and (prompt := read_model_file(folder).default_prompt):
        raise ModelConfigError(f"{file}: a default prompt ({prompt!r}) is not supported for scores")
