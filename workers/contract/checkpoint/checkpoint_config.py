"""Reads the configuration of a model from the files beside its weights."""

import math
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from workers.contract.checkpoint.folder_files import optional
from workers.contract.checkpoint.labels import read_labels, read_sigmoid_scores
from workers.contract.checkpoint.other_formats import read_config
from workers.contract.checkpoint.refused_checkpoints import check_servable
from workers.contract.checkpoint.sentence_transformers_checks import (
    check_sentence_transformers_files,
)
from workers.contract.checkpoint.sentence_transformers_files import (
    MODULES_FILE,
    ModelFile,
    Module,
    TransformerFile,
    module_of,
    read_model_file,
    read_modules,
    read_transformer_file,
)
from workers.contract.checkpoint.sentence_transformers_modules import (
    read_pooling,
    read_reranking,
    read_splade,
    read_vector_modules,
)
from workers.contract.config import AskedTask, Task
from workers.contract.config_keys.keys import ConfigKeys, Refuse, stop
from workers.contract.embedding_modules import vector_size
from workers.contract.families.kinds import kind_of
from workers.contract.families.table import (
    FAMILIES,
    UnknownArchitectureError,
    architecture_for,
    family_of,
)
from workers.contract.model_config import (
    EmbeddingConfig,
    ModelConfig,
    ModelConfigError,
    PoolingConfig,
)
from workers.contract.model_shape import ModelShape
from workers.contract.rope_config import LongScaling, RopeConfig

_Size = Annotated[int, Meta(ge=1)]


def read_model_config(
    path: Path, asked: AskedTask | None = None, refuse: Refuse = stop
) -> ModelConfig:
    """Read `config.json` and the files of sentence-transformers in folder `path`. Their modules are
    not heeded where they are for another task than the one that is `asked` for.

    Raises UnknownArchitectureError before anything else is read, TaskError, and ModelConfigError if
    a file or a required key is missing or of the wrong type. A key that is not known might change
    what the model computes: it goes to `refuse`, as does all else that does not hinder the reading.
    """
    keys = ConfigKeys(path / "config.json", read_config(path), refuse=refuse)
    declared = _architecture(keys)
    modules, transformer = read_modules(path), read_transformer_file(path)
    own = family_of(declared).base if module_of(modules, "Pooling") else declared
    architecture = own if asked is None else architecture_for(declared, asked)
    family = family_of(architecture)
    task = _task(family.task, asked, modules)
    check_servable(keys, path, family, task, refuse)
    heeded = architecture == own and (task == "rerank" or not module_of(modules, "LogitScore"))
    modules = _checked_modules(path, modules, task, refuse) if heeded else []
    shape = family.read_shape(keys)
    _check_attention(keys, shape, family.task)
    model = read_model_file(path)
    reranking = read_reranking(path, modules, model) if task == "rerank" else None
    labels = read_labels(keys)[: None if reranking is None else 1]
    pooling = _pooling(path, modules, shape)
    behind = read_vector_modules(path, modules, vector_size(shape.hidden_size, pooling, ()))
    config = ModelConfig(
        **msgspec.structs.asdict(shape),
        path=str(path),
        architecture=architecture,
        max_model_len=_longest(shape, _own_limit(path, transformer, task)),
        lowercase=transformer.do_lower_case,
        checkpoint_dtype=keys.read("dtype", str, keys.read("torch_dtype", str, "float32")),
        num_labels=len(labels),
        labels=labels,
        sigmoid_scores=read_sigmoid_scores(keys, model.activation_fn) or reranking is not None,
        reranking=reranking,
        pooling=pooling,
        modules=behind,
        splade=read_splade(path, modules),
        embedding=_embedding_config(keys, model, vector_size(shape.hidden_size, pooling, behind)),
    )
    keys.check_all_read()
    return config


def _task(own: Task, asked: AskedTask | None, modules: list[Module]) -> Task:
    """A causal model with an LM head reranks if it is asked to, or if its modules say so."""
    reranks = asked == "rerank" or (asked is None and module_of(modules, "LogitScore"))
    return "rerank" if own == "generate" and reranks else own


def _pooling(folder: Path, modules: list[Module], shape: ModelShape) -> PoolingConfig:
    """How token states are pooled. In a causal model only the last token has seen all others, and
    the states of those in the prefix cache are not computed again."""
    last = PoolingConfig(modes=("lasttoken",))
    if shape.has_kv_cache and not modules:
        return last
    pooling = read_pooling(folder, modules, shape.hidden_size)
    if shape.has_kv_cache and module_of(modules, "Pooling") and pooling.modes != last.modes:
        reason = f"pooling_mode {' + '.join(pooling.modes)} over a causal model is not supported"
        raise ModelConfigError(f"{folder / MODULES_FILE}: {reason} (lasttoken)")
    return pooling


def _architecture(keys: ConfigKeys) -> str:
    """The declared architecture. Raises UnknownArchitectureError unless it is in the table."""
    names = keys.read("architectures", list[str], [])
    if not names:
        raise keys.error("it names no architecture")
    if names[0] not in FAMILIES:
        kind = kind_of(names[0], keys.values)
        raise UnknownArchitectureError(names[0], f"{keys.file}: ", kind)
    return names[0]


def _checked_modules(
    folder: Path, modules: list[Module], task: Task, refuse: Refuse
) -> list[Module]:
    try:
        check_sentence_transformers_files(folder, modules, task)
    except ModelConfigError as error:
        refuse(error)
    return modules


def _check_attention(keys: ConfigKeys, shape: ModelShape, task: Task) -> None:
    if task == "generate" and not shape.has_kv_cache:
        raise keys.error("a model whose tokens see those after them cannot generate")
    for kind in shape.attention:
        if kind.window is not None and kind.window < 1:
            raise keys.error(f"a window of {kind.window} tokens is not supported")
        if kind.rope is not None:
            _check_rope(keys, kind.rope, shape.head_dim)


def _check_rope(keys: ConfigKeys, rope: RopeConfig, head_dim: int) -> None:
    if not 0 < rope.fraction <= 1:
        raise keys.error(f"partial_rotary_factor {rope.fraction:g} is no part of a head")
    size, scaling = rope.rotary_dim(head_dim), rope.scaling
    if size % 2 or not 0 < size <= head_dim:
        raise keys.error(f"{size} of {head_dim} dimensions of a head cannot be rotated in pairs")
    if isinstance(scaling, LongScaling):
        for factors in (scaling.short_factors, scaling.long_factors):
            if len(factors) != size // 2:
                reason = f"{len(factors)} factors do not fit {size // 2} pairs of dimensions"
                raise keys.error(f"rope type 'longrope': {reason}")


def _longest(shape: ModelShape, own_limit: int | None) -> int:
    """The most tokens of a text: those that the model can tell apart, by what its rotary embeddings
    say of that (see `RopeConfig.limit`), or fewer."""
    ropes = [kind.rope for kind in shape.attention if kind.rope is not None]
    told = min([rope.limit(shape.max_position) for rope in ropes], default=shape.max_position)
    return told if own_limit is None else min(told, own_limit)


def _own_limit(path: Path, transformer: TransformerFile, task: Task) -> int | None:
    """The length to which sentence-transformers truncates texts. The limit in a generator's
    `tokenizer_config.json` is ignored, as in transformers."""
    if transformer.max_seq_length or task == "generate":
        return transformer.max_seq_length
    file = optional(path, "tokenizer_config.json", _TokenizerFile)
    limit = None if file is None else file.model_max_length
    return int(limit) if limit and math.isfinite(limit) else None


class _TokenizerFile(msgspec.Struct):
    """The key of tokenizer_config.json with the length to which texts are truncated."""

    model_max_length: float | None = None


def _embedding_config(keys: ConfigKeys, model: ModelFile, largest: int) -> EmbeddingConfig:
    """Vectors of `largest` numbers may be truncated to the sizes that `config.json` declares."""
    declared = keys.read("matryoshka_dimensions", list[_Size], [])
    sizes = sorted(set(declared))
    if sizes and sizes[-1] > largest:
        message = f"{sizes[-1]} is more than {largest}, the size of the vectors"
        raise keys.error(f"matryoshka_dimensions: {message}")
    return EmbeddingConfig(
        prompts={name: prompt or "" for name, prompt in (model.prompts or {}).items()},
        default_prompt_name=model.default_prompt_name,
        similarity=model.similarity_fn_name or "cosine",
        is_matryoshka=keys.read("is_matryoshka", bool, False) or bool(sizes),
        matryoshka_dimensions=tuple(sizes),
    )
