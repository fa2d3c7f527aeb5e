"""Reads what a checkpoint is and needs. No weight is read, and torch is not imported."""

from itertools import accumulate
from pathlib import Path

import msgspec

from engine_core.tokenization.checkpoint.tokenizer_settings import TokenizerSettings
from engine_core.tokenization.tokenizer import TOKENIZER_FILE, Tokenizer, TokenizerError
from server.conversion.slow_tokenizer import slow_files
from server.echoed import one_line
from server.inspection.inspected_model import (
    InspectedModel,
    InspectedStage,
    Inspection,
    LayersOfKind,
)
from server.inspection.weight_check import weight_faults
from server.models.generation_file import read_generation_defaults
from server.models.ignored_keys import IgnoredKeys
from server.models.model_setup import EngineOptions, check_stages, execution_config
from server.models.model_source import model_folder
from server.models.reranker import with_template
from server.models.setup_error import ModelSourceError, SetupError
from server.models.stage_memory import kv_bytes_of_token, planned_layers, weight_bytes
from server.models.weight_heads import WeightHeads, read_heads
from server.settings import defaults
from server.templates.template_files import check_template_files
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.checkpoint.folder_files import find_file, read_json
from workers.contract.checkpoint.own_code import own_models
from workers.contract.config import ITEM_BYTES, AskedTask, ExecutionConfig
from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.embedding_modules import NormalizeConfig
from workers.contract.families.table import (
    TaskError,
    UnknownArchitectureError,
    family_of,
    task_of,
)
from workers.contract.model_config import ModelConfig, ModelConfigError
from workers.contract.model_shape import ModelShape
from workers.contract.reranking import UNKNOWN_TEMPLATE

_KV_TOKENS = 1000


def inspect(source: str, options: EngineOptions) -> Inspection:
    """The model in folder `source`, or of that id on the hub, whose weights are not fetched; run
    with the `options` for its task, length, dtype and stages.

    Raises ModelSourceError if there is no such model. All else is among the refusals.
    """
    folder = model_folder(source, "dummy")
    local = Path(source).expanduser().is_dir()
    refused = list[str]()
    model = _read_files(folder, options, refused)
    notes = _own_code(folder)
    notes += _check_tokenizer(folder, model, refused) if local else []
    notes += _check_template(source, folder, model, options.task, refused)
    heads = _read_heads(folder, model, refused if local else [])
    inspected = None if model is None else _inspected(source, model, heads, options, refused)
    return Inspection(
        source=source,
        folder=str(folder),
        model=inspected,
        refused=tuple(dict.fromkeys(map(one_line, refused))),
        notes=tuple(map(one_line, notes)),
    )


def _read_files(folder: Path, options: EngineOptions, refused: list[str]) -> ModelConfig | None:
    """The model that config.json describes, if it can be read as one."""
    names = options.ignore_config_keys
    ignored = IgnoredKeys(names, folder, lambda error: refused.append(str(error)))
    model = None
    try:
        model = read_model_config(folder, options.task, ignored.refuse)
    except (ModelConfigError, TaskError, UnknownArchitectureError) as error:
        refused.append(str(error))
    try:
        read_generation_defaults(folder, ignored.refuse)
        TokenizerSettings(folder, ignored.refuse).check_keys()
        check_template_files(folder)
        if model is not None:
            ignored.check()
    except (ModelConfigError, SetupError) as error:
        refused.append(str(error))
    return model


def _own_code(folder: Path) -> list[str]:
    """What is to be said of code that comes with the checkpoint."""
    file = folder / "config.json"
    try:
        own = own_models(ConfigKeys(file, read_json(folder, file.name)))
    except ModelConfigError:
        return []
    return [f"auto_map names code that is never run: {', '.join(own)}"] if own else []


def _check_tokenizer(folder: Path, model: ModelConfig | None, refused: list[str]) -> list[str]:
    """What is to be said of it. It is not converted here: that imports transformers."""

    def refuse(error: ModelConfigError) -> None:
        refused.append(str(error))

    try:
        if not find_file(folder, TOKENIZER_FILE) and (slow := slow_files(folder)):
            names = ", ".join(file.name for file in slow)
            return [f"the tokenizer exists only in slow form ({names}); it would be converted once"]
        if model is not None:
            Tokenizer.for_model(model, "auto", refuse)
    except (ModelConfigError, TokenizerError) as error:
        refused.append(str(error))
    return []


def _check_template(
    source: str,
    folder: Path,
    model: ModelConfig | None,
    asked: AskedTask | None,
    refused: list[str],
) -> list[str]:
    """What is to be said of pairs: a causal model needs a template for them, whose answers are
    tokens of the model."""
    if model is None:
        return []
    try:
        complete = with_template(model, (source, str(folder)), None, "auto", asked)
        if task_of(complete) == "classify" and not complete.reads_pairs:
            return [f"it scores no pairs of texts: {UNKNOWN_TEMPLATE}"]
    except SetupError as error:
        refused.append(str(error))
    except TokenizerError:
        pass  # of the tokenizer that is not here, or not yet converted, there is nothing to say
    return []


def _read_heads(folder: Path, model: ModelConfig | None, refused: list[str]) -> WeightHeads | None:
    """What the heads of the model's weights say, if they are here and whole."""
    modules = () if model is None else model.modules
    for module in modules:
        if not isinstance(module, NormalizeConfig):
            _heads_of(folder, module.path, refused)
    return _heads_of(folder, "", refused)


def _heads_of(folder: Path, module: str, refused: list[str]) -> WeightHeads | None:
    try:
        return read_heads(folder, module)
    except ModelSourceError as error:
        refused.append(str(error))
        return None


def _inspected(
    source: str,
    model: ModelConfig,
    heads: WeightHeads | None,
    options: EngineOptions,
    refused: list[str],
) -> InspectedModel:
    if options.dtype == "auto":
        usual = defaults.dtype(model.checkpoint_dtype, on_cpu=False)
        options = msgspec.structs.replace(options, dtype=usual)
    one_stage = msgspec.structs.replace(options, pipeline_stages=1, max_model_len=None)
    task = task_of(model)
    whole = execution_config(source, model, task, one_stage, "")
    if heads is not None:
        refused += weight_faults(whole)
    execution = _in_stages(whole, options, refused)
    stages, token = _stages(execution, heads), kv_bytes_of_token(execution)
    length = execution.max_model_len
    return InspectedModel(
        architecture=model.architecture,
        family=family_of(model.architecture).name,
        task=task,
        kv_cache=model.has_kv_cache,
        wrapped=model.wrapper is not None,
        max_model_len=length,
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        attention=layers_of_kinds(model),
        dtype=execution.dtype,
        checkpoint_dtype=model.checkpoint_dtype,
        parameters=sum(weight_bytes(whole, heads)) // ITEM_BYTES[whole.dtype],
        parameters_from="shape" if heads is None else "weight files",
        weight_bytes=sum(stage.weight_bytes for stage in stages),
        kv_bytes=_KV_TOKENS * token * model.num_layers,
        kv_bytes_full=length * token * model.num_layers,
        kv_bytes_unused=_left_behind(model, length) * token,
        stages=stages,
    )


def _in_stages(
    whole: ExecutionConfig, options: EngineOptions, refused: list[str]
) -> ExecutionConfig:
    """As it is asked for; the `whole` in one stage if that cannot be."""
    try:
        check_stages(whole.name, whole.model, options)
        return execution_config(whole.name, whole.model, whole.task, options, "")
    except SetupError as error:
        refused.append(str(error))
        return whole


def layers_of_kinds(shape: ModelShape) -> tuple[LayersOfKind, ...]:
    """The layers of each kind of attention, in the order of the kinds."""
    return tuple(
        LayersOfKind(
            num_layers=shape.layer_kinds.count(number),
            layers=tuple(i for i, kind in enumerate(shape.layer_kinds) if kind == number),
            attention=attention,
        )
        for number, attention in enumerate(shape.attention)
    )


def _left_behind(model: ModelConfig, length: int) -> int:
    """Tokens that no later query of the same layer sees, over all layers, in one sequence."""
    windows = [model.attention[kind].window or length for kind in model.layer_kinds]
    return sum(max(0, length - window) for window in windows)


def _stages(execution: ExecutionConfig, heads: WeightHeads | None) -> tuple[InspectedStage, ...]:
    """As the engine plans them where no layer is measured."""
    layers, weights = planned_layers(execution), weight_bytes(execution, heads)
    token = kv_bytes_of_token(execution)
    return tuple(
        InspectedStage(
            first_layer=stop - count,
            num_layers=count,
            weight_bytes=own,
            kv_bytes=_KV_TOKENS * token * count,
        )
        for count, stop, own in zip(layers, accumulate(layers), weights, strict=True)
    )
