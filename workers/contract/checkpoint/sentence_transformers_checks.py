"""Refuses checkpoints whose sentence-transformers files need something that is not supported.

As of its version 6.2. Keys that the library does not know are ignored, as the library does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from workers.contract.config import Task
from workers.contract.config_keys.bookkeeping import Neutral
from workers.contract.config_keys.keys import ConfigKeys
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conventions:
    """What sentence-transformers assumes about a checkpoint that is used for a task, each with the
    file whose entry must agree:

    library_class  its class for such models, None if it has none: `model_type` in
                   config_sentence_transformers.json
    task           the task for which its first module runs the model: `transformer_task` in
                   sentence_bert_config.json
    output         the model's output that the module passes on: `method_output_name` there
    output_name    the name under which it does: `module_output_name` there
    pooling        the type of its second module in modules.json, None if there is none
    after_pooling  types that may follow
    templated      whether texts are put into a template of ours, which takes the place of what the
                   files say of chat templates and prompts
    """

    library_class: str | None
    task: str
    output: str
    output_name: str
    pooling: str | None
    after_pooling: tuple[str, ...] = ()
    templated: bool = False


_CONVENTIONS: Mapping[Task, _Conventions] = {
    "generate": _Conventions(
        library_class=None,
        task="text-generation",
        output="logits",
        output_name="causal_logits",
        pooling=None,
    ),
    "embed": _Conventions(
        library_class="SentenceTransformer",
        task="feature-extraction",
        output="last_hidden_state",
        output_name="token_embeddings",
        pooling="Pooling",
        after_pooling=("Dense", "LayerNorm", "Normalize", "Dropout"),
    ),
    "embed_sparse": _Conventions(
        library_class="SparseEncoder",
        task="fill-mask",
        output="logits",
        output_name="token_embeddings",
        pooling="SpladePooling",
    ),
    "classify": _Conventions(
        library_class="CrossEncoder",
        task="sequence-classification",
        output="logits",
        output_name="scores",
        pooling=None,
    ),
    "rerank": _Conventions(
        library_class="CrossEncoder",
        task="text-generation",
        output="logits",
        output_name="causal_logits",
        pooling=None,
        after_pooling=("LogitScore",),
        templated=True,
    ),
}


def check_sentence_transformers_files(folder: Path, modules: Sequence[Module], task: Task) -> None:
    """Raises ModelConfigError, naming the file and its unsupported module or key."""
    conventions = _CONVENTIONS[task]
    if modules:
        _check_modules(folder, modules, conventions)
    model_task = _MODELS[modules[0].kind] if modules else conventions.task
    _check_transformer_file(folder, model_task, conventions)
    _check_model_file(folder, conventions)


def _check_modules(folder: Path, modules: Sequence[Module], conventions: _Conventions) -> None:
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


def _check_transformer_file(folder: Path, task: str, conventions: _Conventions) -> None:
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


def _check_model_file(folder: Path, conventions: _Conventions) -> None:
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
