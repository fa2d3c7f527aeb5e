"""Reads what a checkpoint is and needs. No weight is read, and torch is not imported."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import Literal

import msgspec

from engine_core.tokenization.tokenizer import TOKENIZER_FILE, Tokenizer, TokenizerError
from engine_core.tokenization.tokenizer_settings import TokenizerSettings
from engine_core.turn_format import IdForm
from server.errors import one_line
from server.models.model_setup import (
    EngineOptions,
    IgnoredKeys,
    check_stages,
    execution_config,
    read_generation_defaults,
    with_template,
)
from server.models.model_source import (
    ModelSourceError,
    SetupError,
    WeightHeads,
    model_folder,
    read_heads,
    weight_folders,
)
from server.models.program import ProgramError, run_program
from server.models.slow_tokenizer import slow_files
from server.models.stage_memory import kv_block_bytes, planned_layers, weight_bytes
from server.settings import defaults
from server.templates.protocol import FormatSource, FoundFormat, NotRendered
from server.templates.template_files import (
    MissingChatTemplateError,
    NoChatTemplateError,
    check_template_files,
    read_chat_template,
)
from server.templates.template_process import ProcessEndedError, loaded
from server.turns.written_calls import example_call
from workers.contract.checkpoint.architectures import TaskError, family_of, task_of
from workers.contract.checkpoint.checkpoint_config import own_models, read_model_config
from workers.contract.checkpoint.config_keys import ConfigKeys
from workers.contract.checkpoint.folder_files import find_file, find_weights, read_json
from workers.contract.config import ITEM_BYTES, CacheDtype, Dtype, ExecutionConfig, Task
from workers.contract.model_config import AttentionKind, ModelConfig, ModelConfigError
from workers.contract.reranking import UNKNOWN_TEMPLATE

SizesFrom = Literal["weight files", "shape"]


class LayersOfKind(msgspec.Struct, frozen=True, kw_only=True):
    """The layers, by number, whose attention computes the same."""

    num_layers: int
    layers: tuple[int, ...]
    attention: AttentionKind


class InspectedStage(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of one pipeline stage. `kv_bytes` are the keys and values of 1,000 tokens."""

    first_layer: int
    num_layers: int
    weight_bytes: int
    kv_bytes: int


class InspectedQuantization(msgspec.Struct, frozen=True, kw_only=True):
    """How linear layers are quantised, and how their weights are held. `stored_bytes` are those of
    the weight files; None where they are not here."""

    format: str
    stored_bytes: int | None
    runs_as: str


class InspectedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that `config.json` describes, and what serving it would take.

    It computes in `dtype`, and caches keys and values in `kv_cache_dtype`; config.json names
    `checkpoint_dtype`. `wrapped`: it is the language model of a larger one. `parameters` by the
    shape are without norms and biases; `active_parameters` are those that one token meets, of
    experts only its own. `weight_bytes` are of all stages, each copy of a tied
    embedding included. `kv_bytes` are the keys and values of 1,000 tokens (0 without a KV cache),
    `kv_bytes_full` what a sequence of `max_model_len` holds in whole blocks, in layers with a
    window only those of its last tokens.
    """

    architecture: str
    family: str
    task: Task
    kv_cache: bool
    wrapped: bool
    max_model_len: int
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    attention: tuple[LayersOfKind, ...]
    dtype: Dtype
    kv_cache_dtype: CacheDtype
    checkpoint_dtype: str
    quantization: InspectedQuantization | None
    parameters: int
    active_parameters: int
    parameters_from: SizesFrom
    weight_bytes: int
    kv_bytes: int
    kv_bytes_full: int
    stages: tuple[InspectedStage, ...]


class InspectedTurns(msgspec.Struct, frozen=True, kw_only=True):
    """The format of an assistant's turns in chats.

    source     where the format is from; None if there is none, and no tools are served
    why_none   the reason for that
    call       a call of a tool, with words for its parts
    call_ids   the ids that calls have in the prompt
    reasoning  the markers around it, if the model reasons
    """

    source: FormatSource | None
    why_none: str = ""
    call: str = ""
    call_ids: IdForm = "any"
    reasoning: tuple[str, str] | None = None


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """`refused` has one line for each reason why `penstock serve` would not start with this model.
    Without `model`, config.json cannot be read as one. Without `turns`, the model cannot chat."""

    source: str
    folder: str
    model: InspectedModel | None
    turns: InspectedTurns | None
    notes: tuple[str, ...]
    refused: tuple[str, ...]


_KV_TOKENS = 1000


def inspect(source: str, options: EngineOptions) -> Inspection:
    """The model in folder `source`, or of that id on the hub, whose weights are not fetched.

    Raises ModelSourceError if there is no such model. All else is among the refusals.
    """
    return _Inspector(source, options).inspection()


class _Inspector:
    """Reads the files of one model, and collects all for which it would be refused."""

    def __init__(self, source: str, options: EngineOptions) -> None:
        """Raises ModelSourceError."""
        self._source, self._options = source, options
        self._folder = model_folder(source, "dummy")
        self._local = Path(source).expanduser().is_dir()
        self._refused: list[str] = []
        self._notes: list[str] = []

    def inspection(self) -> Inspection:
        model = self._read_files()
        self._note_own_code()
        if self._local:
            self._check_tokenizer(model)
        if model is not None:
            self._check_template(model)
        turns = self._read_turns(model)
        heads = self._read_heads(model)
        inspected = None if model is None else self._inspected(model, heads)
        return Inspection(
            source=self._source,
            folder=str(self._folder),
            model=inspected,
            turns=turns,
            refused=tuple(dict.fromkeys(map(one_line, self._refused))),
            notes=tuple(map(one_line, self._notes)),
        )

    def _refuse(self, error: Exception) -> None:
        self._refused.append(str(error))

    @contextmanager
    def _refusing(self, *errors: type[Exception]) -> Generator[None]:
        """Turn one of `errors`, which ends the block, into a refusal."""
        try:
            yield
        except errors as error:
            self._refuse(error)

    def _read_files(self) -> ModelConfig | None:
        """The model, if config.json can be read as one."""
        folder, options = self._folder, self._options
        ignored = IgnoredKeys(options.ignore_config_keys, folder, self._refuse)
        try:
            model = read_model_config(folder, options.task, ignored.refuse)
        except (ModelConfigError, TaskError) as error:
            self._refuse(error)
            model = None
        with self._refusing(ModelConfigError, SetupError):
            read_generation_defaults(folder, ignored.refuse)
            TokenizerSettings(folder, ignored.refuse).check_keys()
            check_template_files(folder)
            if model is not None:
                ignored.check()
        return model

    def _note_own_code(self) -> None:
        """Say that code which comes with the checkpoint is not run."""
        file = self._folder / "config.json"
        # What is wrong with the file has been said.
        with suppress(ModelConfigError):
            if own := own_models(ConfigKeys(file, read_json(self._folder, file.name))):
                self._notes.append(f"auto_map names code that is never run: {', '.join(own)}")

    def _check_tokenizer(self, model: ModelConfig | None) -> None:
        """Read it, or say that it would be converted: that imports transformers."""
        with self._refusing(ModelConfigError, TokenizerError):
            if not find_file(self._folder, TOKENIZER_FILE) and (slow := slow_files(self._folder)):
                names = ", ".join(file.name for file in slow)
                self._notes.append(
                    f"the tokenizer exists only in slow form ({names}); it would be converted once"
                )
            elif model is not None:
                Tokenizer.for_model(model, "auto", self._refuse)

    def _check_template(self, model: ModelConfig) -> None:
        """Causal models need a template for pairs, whose answers are tokens of the model."""
        sources = (self._source, str(self._folder))
        # A tokenizer that is not here, or not yet converted, has been spoken of.
        with self._refusing(SetupError), suppress(TokenizerError):
            complete = with_template(model, sources, None, "auto", self._options.task)
            if task_of(complete) == "classify" and not complete.reads_pairs:
                self._notes.append(f"it scores no pairs of texts: {UNKNOWN_TEMPLATE}")

    def _read_turns(self, model: ModelConfig | None) -> InspectedTurns | None:
        """The format of a chat's turns, which the template's own process finds."""
        if model is None or task_of(model) != "generate":
            return None
        try:
            template = read_chat_template(self._folder)
            found = asyncio.run(loaded(template))
        except MissingChatTemplateError:
            return None
        except (NoChatTemplateError, ProcessEndedError) as error:
            self._notes.append(f"it cannot chat: {error}")
            return None
        if isinstance(found, NotRendered):
            self._notes.append(
                f"it cannot chat: its chat template ({template.file}): {found.reason}"
            )
            return None
        return _turns(found)

    def _read_heads(self, model: ModelConfig | None) -> WeightHeads | None:
        """The heads of the model's weights, if they are here and whole."""
        heads = None
        for path in [""] if model is None else weight_folders(model):
            heads = None
            try:
                heads = read_heads(self._folder, path)
            except (ModelConfigError, ModelSourceError) as error:
                if self._local:
                    self._refuse(error)
        return heads

    def _usual_options(self, model: ModelConfig, task: Task) -> EngineOptions:
        """The options, and defaults as on a GPU."""
        options = self._options
        size = options.block_size or defaults.block_size(generates=task == "generate", on_cpu=False)
        options = msgspec.structs.replace(options, block_size=size)
        if options.dtype != "auto":
            return options
        usual = defaults.dtype(model.checkpoint_dtype, on_cpu=False)
        return msgspec.structs.replace(options, dtype=usual)

    def _inspected(self, model: ModelConfig, heads: WeightHeads | None) -> InspectedModel:
        task = task_of(model)
        options = self._usual_options(model, task)
        one_stage = msgspec.structs.replace(options, pipeline_stages=1, max_model_len=None)
        whole = execution_config(self._source, model, task, one_stage, "")
        if heads is not None:
            self._refused += weight_faults(whole)
        execution = whole
        with self._refusing(SetupError):
            check_stages(self._source, model, options)
            execution = execution_config(self._source, model, task, options, "")
        # As the dtype: of the GPUs that would serve it, which this machine may lack.
        gpus = tuple(f"cuda:{stage}" for stage in range(execution.num_stages))
        execution = msgspec.structs.replace(execution, devices=gpus)
        stages = _stages(execution, heads)
        parameters = sum(weight_bytes(whole, heads)) // ITEM_BYTES[whole.dtype]
        return InspectedModel(
            architecture=model.architecture,
            family=family_of(model.architecture).name,
            task=task,
            kv_cache=model.has_kv_cache,
            wrapped=model.wrapped,
            max_model_len=execution.max_model_len,
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            num_layers=model.num_layers,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            attention=_layers_of_kinds(model),
            dtype=execution.dtype,
            kv_cache_dtype=execution.cache_dtype,
            checkpoint_dtype=model.checkpoint_dtype,
            quantization=_quantization(execution.model, heads),
            parameters=parameters,
            active_parameters=parameters - _idle_numbers(model),
            parameters_from="weight files" if heads else "shape",
            weight_bytes=sum(stage.weight_bytes for stage in stages),
            kv_bytes=sum(stage.kv_bytes for stage in stages),
            kv_bytes_full=_bytes_of_longest(execution),
            stages=stages,
        )


def _quantization(model: ModelConfig, heads: WeightHeads | None) -> InspectedQuantization | None:
    own, folder = model.quantization, Path(model.path)
    if own is None or not own.of_weights:
        return None
    files = find_weights(folder).files if heads else ()
    return InspectedQuantization(
        format=str(own),
        stored_bytes=sum(file.stat().st_size for file in files) or None,
        runs_as=f"{'MXFP4' if own.in_fp4 else 'FP8'} on CUDA, dequantised to --dtype on a CPU",
    )


def _turns(found: FoundFormat) -> InspectedTurns:
    form = found.form
    if form is None:
        return InspectedTurns(source=None, why_none=found.reason)
    reasoning = form.reasoning
    return InspectedTurns(
        source=found.source,
        call=example_call(form.calls[0]),
        call_ids=form.ids,
        reasoning=None if reasoning is None else (reasoning.open, reasoning.close),
    )


def _layers_of_kinds(model: ModelConfig) -> tuple[LayersOfKind, ...]:
    return tuple(
        LayersOfKind(
            num_layers=model.layer_kinds.count(number),
            layers=tuple(i for i, kind in enumerate(model.layer_kinds) if kind == number),
            attention=attention,
        )
        for number, attention in enumerate(model.attention)
    )


def _bytes_of_longest(execution: ExecutionConfig) -> int:
    """Bytes of KV cache that a sequence of full length holds on all stages."""
    if not execution.model.has_kv_cache:
        return 0
    blocks = execution.cache_layout.blocks_held(execution.max_model_len)
    return blocks * sum(kv_block_bytes(execution))


def _idle_numbers(model: ModelConfig) -> int:
    """Numbers of experts that are not a token's, in all layers."""
    layers = range(model.num_layers)
    return sum(model.mlp_numbers(i) - model.mlp_numbers(i, active=True) for i in layers)


def _stages(execution: ExecutionConfig, heads: WeightHeads | None) -> tuple[InspectedStage, ...]:
    layers, weights = planned_layers(execution), weight_bytes(execution, heads)
    return tuple(
        InspectedStage(
            first_layer=stop - count,
            num_layers=count,
            weight_bytes=own,
            kv_bytes=_KV_TOKENS * execution.kv_token_bytes(range(stop - count, stop)),
        )
        for count, stop, own in zip(layers, accumulate(layers), weights, strict=True)
    )


def weight_faults(execution: ExecutionConfig) -> list[str]:
    """A line for each reason why the weights would not be loaded."""
    try:
        found = run_program("workers.weights.loader", data=msgspec.json.encode(execution))
    except ProgramError as error:
        return [f"the weights cannot be compared with the model: {error}"]
    return msgspec.json.decode(found, type=list[str])
