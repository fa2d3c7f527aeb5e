"""Reads sentence-transformers' files beside a model, and refuses what is not supported.

As of its version 6.2. All readers raise ModelConfigError. Each module has its `config.json` in a
folder of its own. Pooling, Dense, LayerNorm and Normalize turn an embedder's token states into
vectors. SpladePooling, and the LogitScore of a causal model that scores pairs, stand alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta

from workers.contract.checkpoint.config_keys import MOST_WIDTH, ConfigKeys, Refuse, each
from workers.contract.checkpoint.folder_files import decoded, optional
from workers.contract.config import Task
from workers.contract.model_config import (
    DenseActivation,
    DenseConfig,
    LayerNormConfig,
    ModelConfigError,
    NormalizeConfig,
    PoolingConfig,
    PoolingMode,
    Similarity,
    SpladeConfig,
    VectorModule,
)
from workers.contract.reranking import RerankConfig

MODULES_FILE = "modules.json"
MODEL_FILE = "config_sentence_transformers.json"

_TRANSFORMER_FILES = [
    f"sentence_{kind}_config.json"
    for kind in "bert roberta distilbert camembert albert xlm-roberta xlnet".split()
]
"""Names of the first module's settings. The library takes the first that says anything."""


class Module(msgspec.Struct):
    """An entry of modules.json: `type` is a dotted class name, `path` a folder, `name` a key of its
    own."""

    type: str
    path: str
    name: str = ""

    @property
    def kind(self) -> str:
        return self.type.rpartition(".")[2]

    @property
    def config_file(self) -> Path:
        """The module's configuration, seen from the model's folder."""
        return Path(self.path, "config.json")


class TransformerFile(msgspec.Struct):
    max_seq_length: Annotated[int, Meta(ge=0)] | None = None
    do_lower_case: bool = False


class ModelFile(msgspec.Struct):
    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None
    similarity_fn_name: Similarity | None = None
    activation_fn: str | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    query_length: Annotated[int, Meta(ge=3)] | None = None
    document_length: Annotated[int, Meta(ge=3)] | None = None
    do_query_expansion: bool | None = None
    attend_to_expansion_tokens: bool | None = None
    skiplist_words: list[str] | None = None

    @property
    def default_prompt(self) -> str:
        return (self.prompts or {}).get(self.default_prompt_name or "") or ""


def read_modules(folder: Path) -> list[Module]:
    """The modules in order. Empty without `modules.json`. Raises ModelConfigError."""
    modules = optional(folder, MODULES_FILE, list[Module]) or []
    for name, times in Counter(module.name for module in modules).items():
        if name and times > 1:  # the library would keep the last one alone
            raise ModelConfigError(f"{folder / MODULES_FILE}: two modules have the name {name!r}")
    return modules


def _transformer_file(folder: Path) -> str:
    """The settings of the first module, which may be missing. Raises ModelConfigError."""
    names = _TRANSFORMER_FILES
    return next((name for name in names if optional(folder, name, dict[str, Any])), names[0])


def read_transformer_file(folder: Path) -> TransformerFile:
    return optional(folder, _transformer_file(folder), TransformerFile) or TransformerFile()


def read_model_file(folder: Path) -> ModelFile:
    settings = optional(folder, MODEL_FILE, ModelFile) or ModelFile()
    default = settings.default_prompt_name
    if default is not None and default not in (settings.prompts or {}):
        raise ModelConfigError(
            f"{folder / MODEL_FILE}: default_prompt_name {default!r} is none of its prompts"
        )
    return settings


def module_of(modules: Sequence[Module], kind: str) -> Module | None:
    return next((module for module in modules if module.kind == kind), None)


_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)
"""In the order in which the library puts their vectors side by side."""


class _Pooling(msgspec.Struct, forbid_unknown_fields=True):
    """The configuration of a Pooling module. Before version 5.4 the library wrote one key for each
    mode."""

    pooling_mode: PoolingMode | Annotated[list[PoolingMode], Meta(min_length=1)] | None = None
    cls: bool = msgspec.field(default=False, name="pooling_mode_cls_token")
    max: bool = msgspec.field(default=False, name="pooling_mode_max_tokens")
    mean: bool = msgspec.field(default=False, name="pooling_mode_mean_tokens")
    mean_sqrt_len_tokens: bool = msgspec.field(
        default=False, name="pooling_mode_mean_sqrt_len_tokens"
    )
    weightedmean: bool = msgspec.field(default=False, name="pooling_mode_weightedmean_tokens")
    lasttoken: bool = msgspec.field(default=False, name="pooling_mode_lasttoken")
    embedding_dimension: int | None = None
    word_embedding_dimension: int | None = None
    include_prompt: bool = True

    def modes(self) -> tuple[PoolingMode, ...]:
        """The mean, if none is named."""
        named = self.pooling_mode
        if named is None:
            return tuple(mode for mode in _MODES if getattr(self, mode)) or ("mean",)
        return (named,) if isinstance(named, str) else tuple(named)


def read_pooling(folder: Path, modules: Sequence[Module], hidden_size: int) -> PoolingConfig:
    """The Pooling module, or the library's default without one. Raises ModelConfigError."""
    module = module_of(modules, "Pooling")
    if module is None:
        return PoolingConfig()
    own = decoded(folder, module.config_file, _Pooling)
    for key in ("embedding_dimension", "word_embedding_dimension"):
        size: int | None = getattr(own, key)
        if size not in (None, hidden_size):
            raise ModelConfigError(
                f"{folder / module.config_file}: {key} {size} does not fit the model's hidden "
                f"size, {hidden_size}"
            )
    return PoolingConfig(modes=own.modes(), include_prompt=own.include_prompt)


def read_splade(folder: Path, modules: Sequence[Module]) -> SpladeConfig:
    """The SpladePooling module, or its defaults if there is none. Raises ModelConfigError."""
    module = module_of(modules, "SpladePooling")
    return SpladeConfig() if module is None else decoded(folder, module.config_file, SpladeConfig)


def read_reranking(folder: Path, modules: Sequence[Module], file: ModelFile) -> RerankConfig:
    """The checkpoint's own answer tokens, if it names them, and its default prompt as instruction.
    The template is not in the files."""
    tokens: list[int] = []
    if module := module_of(modules, "LogitScore"):
        keys = ConfigKeys.of_file(folder, module.config_file)
        keys.neutral({"module_input_name": ("causal_logits",)})
        tokens.append(keys.size("true_token_id", least=0))
        if (other := keys.optional_size("false_token_id", least=0)) is not None:
            tokens.append(other)
        keys.check_all_read(lambda _: False, "this module")
    return RerankConfig(token_ids=tuple(tokens), instruction=file.default_prompt or None)


def read_vector_modules(
    folder: Path, modules: Sequence[Module], pooled_size: int, behind_module: str = "Pooling"
) -> tuple[VectorModule, ...]:
    """The modules behind another, mostly the pooling, whose vectors have `pooled_size` numbers."""
    kinds = [module.kind for module in modules]
    start = kinds.index(behind_module) + 1 if behind_module in kinds else len(kinds)
    behind, size, read = modules[start:], pooled_size, list[VectorModule]()
    name = "sentence_embedding" if behind_module == "Pooling" else "token_embeddings"
    names = {"module_input_name": (name,), "module_output_name": (name, None)}
    weighted = Counter(module.path for module in behind if module.kind in ("Dense", "LayerNorm"))
    for path, times in weighted.items():
        if times > 1:
            raise ModelConfigError(
                f"{folder / MODULES_FILE}: two modules are in the folder {path!r}"
            )
    for module in behind:
        keys = ConfigKeys.of_file(folder, module.config_file)
        keys.neutral({**names, "use_residual": (False,)})
        match module.kind:
            case "Dense":
                dense = _dense(keys, module.path, size)
                read.append(dense)
                size = dense.out_features
            case "LayerNorm":
                _check_fit(keys, "dimension", size)
                read.append(LayerNormConfig(path=module.path, size=size))
            case "Normalize":
                read.append(NormalizeConfig())
            case _:  # Dropout, which does nothing outside training
                pass
        if module.path in weighted:
            keys.check_all_read(lambda _: False, "this module")
    return tuple(read)


def _dense(keys: ConfigKeys, path: str, size: int) -> DenseConfig:
    _check_fit(keys, "in_features", size)
    return DenseConfig(
        path=path,
        in_features=size,
        out_features=keys.size("out_features", MOST_WIDTH),
        bias=keys.read("bias", bool, True),
        activation=_activation(keys),
    )


def _check_fit(keys: ConfigKeys, name: str, size: int) -> None:
    own = keys.size(name)
    if own != size:
        reason = f"{own} does not fit the vectors before it, which have {size} numbers"
        raise keys.error(f"{name} {reason}")


def _activation(keys: ConfigKeys) -> DenseActivation:
    path = keys.read("activation_function", str, "torch.nn.modules.activation.Tanh")
    module, _, name = path.rpartition(".")
    known: tuple[DenseActivation, ...] = get_args(DenseActivation)
    if name not in known or not f"{module}.".startswith("torch.nn."):
        names = ", ".join(known)
        raise keys.error(f"activation_function {path} is not supported (torch.nn's {names})")
    return name


_MODELS = {"Transformer": "feature-extraction", "MLMTransformer": "fill-mask"}
"""Modules that run a model -> the task of each, unless its file names another."""

_ARGUMENTS = "model_args model_kwargs tokenizer_args processor_kwargs config_args config_kwargs"
_HARMLESS_ARGUMENTS = frozenset(
    "add_pooling_layer attn_implementation device_map dtype low_cpu_mem_usage padding_side "
    "torch_dtype trust_remote_code use_cache use_fast use_safetensors".split()
)
"""Arguments that change no numbers, or only their rounding."""


_LIBRARIES = ("sentence_transformers.", "pylate.")


@dataclass(frozen=True, slots=True)
class _Conventions:
    """Assumptions of sentence-transformers about a checkpoint, by the task.

    library_class  `model_type` in config_sentence_transformers.json, None for no class
    task           `transformer_task` of the first module, in sentence_bert_config.json
    output         `method_output_name` there: the model's output that the module passes on
    output_name    `module_output_name` there: the name under which it does
    pooling        the type of the second module in modules.json, None if there is none
    after_pooling  types that may follow
    templated      a template of ours takes the place of what the files say of chat templates
                   and prompts
    """

    library_class: str | None
    task: str
    output: str
    output_name: str
    pooling: str | None = None
    after_pooling: tuple[str, ...] = ()
    templated: bool = False


_CONVENTIONS: Mapping[Task, _Conventions] = {
    "generate": _Conventions(None, "text-generation", "logits", "causal_logits"),
    "embed": _Conventions(
        "SentenceTransformer",
        "feature-extraction",
        "last_hidden_state",
        "token_embeddings",
        "Pooling",
        ("Dense", "LayerNorm", "Normalize", "Dropout"),
    ),
    "embed_sparse": _Conventions(
        "SparseEncoder", "fill-mask", "logits", "token_embeddings", "SpladePooling"
    ),
    "embed_tokens": _Conventions(
        "ColBERT",
        "feature-extraction",
        "last_hidden_state",
        "token_embeddings",
        after_pooling=("Dense",),
    ),
    "classify_tokens": _Conventions(None, "token-classification", "logits", "token_scores"),
    "classify": _Conventions("CrossEncoder", "sequence-classification", "logits", "scores"),
    "rerank": _Conventions(
        "CrossEncoder",
        "text-generation",
        "logits",
        "causal_logits",
        after_pooling=("LogitScore",),
        templated=True,
    ),
}


def check_library_files(
    folder: Path, modules: Sequence[Module], task: Task, refuse: Refuse
) -> None:
    """Refuse files with an unsupported module or key, which the message names."""
    conventions = _CONVENTIONS[task]
    try:
        if modules:
            _check_modules(folder, modules, conventions)
        _check_transformer_file(folder, modules, conventions)
        _check_model_file(folder, conventions)
    except ModelConfigError as error:
        refuse(error)


def _check_modules(folder: Path, modules: Sequence[Module], conventions: _Conventions) -> None:
    """A model in the folder itself comes first, then its pooling and what may follow that."""
    file, kinds = folder / MODULES_FILE, [module.kind for module in modules]
    pooling = [] if conventions.pooling is None else [conventions.pooling]
    start, rest = kinds[1 : 1 + len(pooling)], set(kinds[1 + len(pooling) :])
    fits = kinds[0] in _MODELS and start == pooling and rest <= set(conventions.after_pooling)
    if not fits or not all(module.type.startswith(_LIBRARIES) for module in modules):
        types = ", ".join(module.type for module in modules)
        needed = ", ".join(("Transformer", *pooling))
        more = ", ".join(conventions.after_pooling) or "nothing"
        raise ModelConfigError(f"{file}: {types} are not supported (first {needed}, then {more})")
    if Path(modules[0].path) != Path():
        raise ModelConfigError(f"{file}: a model in {modules[0].path!r} is not supported")


def _check_transformer_file(
    folder: Path, modules: Sequence[Module], conventions: _Conventions
) -> None:
    text = {"method": "forward", "method_output_name": conventions.output}
    neutral: dict[str, tuple[Any, ...]] = {
        "transformer_task": (conventions.task,),
        "modality_config": ({"text": text}, None),
        "module_output_name": (conventions.output_name, None),
        "processing_kwargs": ({}, None),
        **each("query_length document_length query_expansion tokenizer_name_or_path", None),
    }
    if conventions.templated:
        del neutral["modality_config"], neutral["processing_kwargs"]
    name = _transformer_file(folder)
    task = _MODELS[modules[0].kind] if modules else conventions.task
    keys = ConfigKeys.of_file(folder, name)
    keys.assume({"transformer_task": task})
    keys.neutral(neutral)
    for key in _ARGUMENTS.split():
        arguments = keys.read(key, dict[str, Any], {})
        others = {name: (None,) for name in arguments if name not in _HARMLESS_ARGUMENTS}
        ConfigKeys(folder / name, arguments).neutral(others)
    others = "do_lower_case max_seq_length modality_config processing_kwargs unpad_inputs"
    keys.ignore(*others.split())
    keys.check_all_read(lambda _: False, "this module")


def _check_model_file(folder: Path, conventions: _Conventions) -> None:
    keys = ConfigKeys.of_file(folder, MODEL_FILE)
    keys.neutral(
        {"model_type": (conventions.library_class,), **each("truncate_dim max_active_dims", None)}
        | each("attend_to_mask_tokens query_expansion")  # later spellings of PyLate's keys
    )
    scores = conventions.pooling is None and not conventions.templated
    if scores and (prompt := read_model_file(folder).default_prompt):
        raise keys.error(f"a default prompt ({prompt!r}) is not supported for scores")
