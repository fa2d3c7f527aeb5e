"""Reads the configuration of a model from the files beside its weights."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from workers.contract.checkpoint.architectures import Family, architecture_for, family_of
from workers.contract.checkpoint.config_keys import (
    MOST_WIDTH,
    ConfigKeys,
    Refuse,
    shown_value,
    stop,
)
from workers.contract.checkpoint.folder_files import ADAPTER_FILE, find_file, optional, read_config
from workers.contract.checkpoint.late_interaction import read_late_interaction, read_token_modules
from workers.contract.checkpoint.quantization import read_quantization
from workers.contract.checkpoint.sentence_transformers import (
    MODULES_FILE,
    ModelFile,
    Module,
    TransformerFile,
    check_library_files,
    module_of,
    read_model_file,
    read_modules,
    read_pooling,
    read_reranking,
    read_splade,
    read_transformer_file,
    read_vector_modules,
)
from workers.contract.checkpoint.shape_keys import ShapeKeys
from workers.contract.config import AskedTask, Task
from workers.contract.model_config import (
    EmbeddingConfig,
    LateInteractionConfig,
    Llama3Scaling,
    LongScaling,
    ModelConfig,
    ModelConfigError,
    ModelShape,
    PoolingConfig,
    RopeConfig,
    vector_size,
)


def read_model_config(
    path: Path, asked: AskedTask | None = None, refuse: Refuse = stop
) -> ModelConfig:
    """Read `config.json` and the files beside it in folder `path`. Modules for another task than
    the `asked` one are ignored. Faults such as an unknown key go to `refuse`. Raises TaskError, and
    ModelConfigError for an unknown architecture, first of all, and for a file or key."""
    keys = ShapeKeys(path / "config.json", read_config(path), refuse=refuse)
    declared = _architecture(keys)
    modules, transformer = read_modules(path), read_transformer_file(path)
    own = family_of(declared).base if module_of(modules, "Pooling") else declared
    architecture = own if asked is None else architecture_for(declared, asked)
    family = family_of(architecture)
    task, quantization = _task(family.task, asked, modules), read_quantization(keys)
    _check_servable(keys, family, task)
    if architecture == own and (task == "rerank" or not module_of(modules, "LogitScore")):
        check_library_files(path, modules, task, refuse)
    else:
        modules = []
    shape, model = _read_shape(keys, family), read_model_file(path)
    late = _late_interaction(keys, model, shape, modules) if task == "embed_tokens" else None
    reranking = read_reranking(path, modules, model) if task == "rerank" else None
    labels = _read_labels(keys)[: None if reranking is None else 1]
    pooling = _pooling(path, modules, shape)
    behind = read_vector_modules(path, modules, vector_size(shape.hidden_size, pooling, ()))
    config = ModelConfig(
        **msgspec.structs.asdict(shape),
        path=str(path),
        architecture=architecture,
        quantization=quantization,
        max_model_len=_longest(path, shape, transformer, task, late),
        lowercase=transformer.do_lower_case,
        checkpoint_dtype=keys.read("dtype", str, keys.read("torch_dtype", str, "float32")),
        num_labels=len(labels),
        labels=labels,
        sigmoid_scores=_read_sigmoid_scores(keys, model.activation_fn) or reranking is not None,
        reranking=reranking,
        pooling=pooling,
        modules=behind,
        token_modules=read_token_modules(path, modules, task, shape.hidden_size),
        late_interaction=late,
        splade=read_splade(path, modules),
        embedding=_embedding_config(keys, model, vector_size(shape.hidden_size, pooling, behind)),
    )
    keys.check_all_read()
    return config


def _task(own: Task, asked: AskedTask | None, modules: list[Module]) -> Task:
    """The task. A causal model with an LM head reranks if asked to, or if its modules say so. An
    embedder has vectors of tokens if its modules are PyLate's."""
    if own == "embed" and any(module.type.startswith("pylate.") for module in modules):
        return "embed_tokens"
    reranks = asked == "rerank" or (asked is None and module_of(modules, "LogitScore"))
    return "rerank" if own == "generate" and reranks else own


def _pooling(folder: Path, modules: list[Module], shape: ModelShape) -> PoolingConfig:
    """How token states are pooled. A causal model is pooled by its last token: only that has seen
    all others, and states of cached tokens are not computed again."""
    last = PoolingConfig(modes=("lasttoken",))
    if shape.has_kv_cache and not modules:
        return last
    pooling = read_pooling(folder, modules, shape.hidden_size)
    if shape.has_kv_cache and module_of(modules, "Pooling") and pooling.modes != last.modes:
        reason = f"pooling_mode {' + '.join(pooling.modes)} over a causal model is not supported"
        raise ModelConfigError(f"{folder / MODULES_FILE}: {reason} (lasttoken)")
    return pooling


def _architecture(keys: ConfigKeys) -> str:
    names = keys.read("architectures", list[str], [])
    if not names:
        raise keys.error("it names no architecture")
    family_of(names[0], f"{keys.file}: ")
    return names[0]


def _read_shape(keys: ShapeKeys, family: Family) -> ModelShape:
    """The shape, whose numbers and attention are checked."""
    shape = family.read_shape(keys)
    # msgspec checks bounds where it reads, not where a struct is made.
    try:
        msgspec.convert(msgspec.to_builtins(shape), ModelShape)
    except msgspec.ValidationError as error:
        raise keys.error(f"an impossible number: {error}") from None
    if family.task == "generate" and not shape.has_kv_cache:
        raise keys.error("a model whose tokens see those after them cannot generate")
    reads_last = family.model_class.endswith("DecoderForSequenceClassification")
    if reads_last and not shape.has_kv_cache:
        raise keys.error("a decoder whose tokens see those after them cannot classify here")
    for kind in shape.attention:
        if kind.rope is not None:
            _check_rope(keys, kind.rope, shape.head_dim)
    return shape


def _check_rope(keys: ConfigKeys, rope: RopeConfig, head_dim: int) -> None:
    size, scaling = rope.rotary_dim(head_dim), rope.scaling
    if size % 2 or not 0 < size <= head_dim:
        raise keys.error(f"{size} of {head_dim} dimensions of a head cannot be rotated in pairs")
    if isinstance(scaling, Llama3Scaling) and scaling.low_freq_factor >= scaling.high_freq_factor:
        raise keys.error("rope type 'llama3': low_freq_factor is not less than high_freq_factor")
    if isinstance(scaling, LongScaling):
        for factors in (scaling.short_factors, scaling.long_factors):
            if len(factors) != size // 2:
                reason = f"{len(factors)} factors do not fit {size // 2} pairs of dimensions"
                raise keys.error(f"rope type 'longrope': {reason}")


class _TokenizerFile(msgspec.Struct):
    model_max_length: Annotated[float, Meta(ge=0)] | None = None


def _late_interaction(
    keys: ConfigKeys, file: ModelFile, shape: ModelShape, modules: list[Module]
) -> LateInteractionConfig:
    """How texts become vectors of their tokens, in a model of this shape."""
    if shape.has_kv_cache:
        raise keys.error("vectors of the tokens of a causal model are not supported")
    late = read_late_interaction(keys.file.parent, file, own_code=not modules)
    if late.query_length > shape.max_position:
        reason = f"more than its {shape.max_position} positions"
        raise keys.error(f"queries of {late.query_length} tokens are {reason}")
    return late


def _longest(
    path: Path,
    shape: ModelShape,
    transformer: TransformerFile,
    task: Task,
    late: LateInteractionConfig | None,
) -> int:
    """The most tokens of a text: those that the model can tell apart (see `RopeConfig.limit`), or
    fewer, if sentence-transformers truncates texts. As in transformers, a generator's
    `tokenizer_config.json` has no say."""
    ropes = [kind.rope for kind in shape.attention if kind.rope is not None]
    most = min([rope.limit(shape.max_position) for rope in ropes], default=shape.max_position)
    most = most if late is None else late.longest_text(most)
    own: float | None = transformer.max_seq_length
    if not own and task != "generate":
        file = optional(path, "tokenizer_config.json", _TokenizerFile) or _TokenizerFile()
        own = file.model_max_length
    return int(min(most, own or most))


def _read_labels(keys: ConfigKeys) -> tuple[str, ...]:
    """The labels' names. Without names in the file, those that transformers makes up."""
    names = keys.read("id2label", dict[str, Any], {})
    count = len(names) or keys.size("num_labels", MOST_WIDTH, least=0, default=2)
    return tuple(str(names.get(str(i), f"LABEL_{i}")) for i in range(count))


def _read_sigmoid_scores(keys: ConfigKeys, declared: str | None) -> bool:
    """Whether the sigmoid turns each logit into a probability.

    One label: yes, unless its activation is the identity (sentence-transformers' rule). Several
    labels: if their activation is the sigmoid, or the checkpoint is a multi-label classifier. The
    activation is `declared`, or in keys of `config.json` by earlier versions of the library.
    """
    settings = keys.read("sentence_transformers", dict[str, Any], {})
    earlier = keys.read("sbert_ce_default_activation_function", str, "")
    activation = str(declared or settings.get("activation_fn") or earlier)
    several = len(_read_labels(keys)) > 1
    usual = not several or keys.read("problem_type", str, "") == "multi_label_classification"
    if not activation:
        return usual
    means = {"Identity": several and usual, "Sigmoid": True}
    if several:
        means["Softmax"] = False
    module, _, name = activation.rpartition(".")
    if name not in means or not module.startswith("torch.nn"):
        raise keys.error(f"activation function {activation} is not supported")
    return means[name]


_Size = Annotated[int, Meta(ge=1)]


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


def own_models(keys: ConfigKeys) -> tuple[str, ...]:
    """The checkpoint's own classes of models, such as `modeling_qwen.Qwen2Model`."""
    classes = keys.read("auto_map", dict[str, Any], {})
    own = (str(path) for name, path in classes.items() if name.startswith("AutoModel"))
    return tuple(dict.fromkeys(own))


def _check_servable(keys: ConfigKeys, family: Family, task: Task) -> None:
    """Refuse checkpoints that no family serves: unknown code, adapters, scores of no kind."""
    _check_own_code(keys, family, task)
    if file := find_file(keys.file.parent, ADAPTER_FILE):
        reason = "adapters are not supported; merge it into the weights"
        keys.refuse(ModelConfigError(f"{file}: {reason}"))
    several = task == "classify" and len(_read_labels(keys)) > 1
    if several and keys.values.get("problem_type") == "regression":
        keys.refuse_key("problem_type", "regression of several labels is not supported")


def _check_own_code(keys: ConfigKeys, family: Family, task: Task) -> None:
    """Refuse an embedder or a reranker with code of its own that the family does not know.

    Under the name of a known architecture such code often attends in both directions. A generator's
    cannot: it is an earlier form of transformers' own.
    """
    # `modeling_qwen` of `owner/name--modeling_qwen.Qwen2Model`
    modules = {own: own.rpartition("--")[2].rpartition(".")[0] for own in own_models(keys)}
    known = {
        module
        for module, required in family.known_code.items()
        if required.items() <= keys.values.items()
    }
    unknown = [own for own, module in modules.items() if module not in known]
    if unknown and task != "generate":
        needed = family.known_code.get(modules[unknown[0]])
        reason = (
            f"this may compute another model than {family.name}; if it does not, "
            "ignore_config_keys may name auto_map"
        )
        if needed is not None:
            reason = f"this is known only where config.json also says {shown_value(needed)}"
        never = f"names {unknown[0]}: code that comes with a checkpoint is never run, and"
        keys.refuse_key("auto_map", f"{never} {reason}")
