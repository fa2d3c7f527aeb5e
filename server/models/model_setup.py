"""Builds the configuration of an engine from a model's folder and its options.

Defaults come from `server/settings/defaults.py`.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine_core.config import EngineConfig
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.tokenization.tokenizer_settings import TokenizerSettings
from server.models.devices import available_cores, cores_of_copy, cuda_memory, device_ordinal
from server.models.model_source import SetupError, WeightHeads, check_checkpoint
from server.models.placement import Cluster, Host, place_stages
from server.models.slow_tokenizer import with_tokenizer
from server.models.stage_memory import largest_kv_cache, weight_bytes
from server.settings import defaults
from server.settings.settings import (
    EngineSettings,
    GenerationDefaults,
    Limits,
    ServedModel,
    SettingNames,
    cache_folder,
)
from server.templates.template_files import check_template_files
from workers.contract.checkpoint.architectures import TaskError, family_of, task_of
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.checkpoint.config_keys import ConfigKeys, Refuse, each, stop
from workers.contract.checkpoint.folder_files import converted, optional, read_config
from workers.contract.config import (
    HOLDER_BYTES,
    AskedTask,
    Dtype,
    ExecutionConfig,
    KVCacheDtype,
    LoadFormat,
    Task,
    copy_suffix,
)
from workers.contract.model_config import ModelConfig, ModelConfigError, UnsupportedKeyError
from workers.contract.quantization import FROM_16_BITS, QuantizationMethod
from workers.contract.reranking import RerankConfig, RerankTemplate, template_of_name
from workers.contract.token_sampling import TokenSampling

_GIB = 1 << 30

_logger = logging.getLogger(__name__)


class EngineOptions(EngineSettings, frozen=True, kw_only=True):
    """How an engine is run. `memory_share` is its part of each of its CUDA devices. `sources` are
    names of the checkpoint besides its folder. `setting_names` are those in messages, by key. With
    a `cluster` it is divided over several hosts. Whoever runs it starts lost stages again, up to
    `max_restarts` times."""

    cluster: Cluster | None = None
    memory_share: float = defaults.MEMORY_SHARE
    rerank: RerankTemplate | None = None
    sources: tuple[str, ...] = ()
    stall_timeout: float = defaults.STALL_TIMEOUT
    startup_timeout: float = defaults.STARTUP_TIMEOUT
    max_restarts: int = 0
    log_level: str = defaults.LOG_LEVEL
    setting_names: dict[str, str] = msgspec.field(
        default_factory=lambda: SettingNames().of_engine(0)
    )


def set_up_model(
    name: str, folder: Path, options: EngineOptions, limits: Limits, prefix: str
) -> ServedModel:
    """Read the checkpoint's configuration and decide what the options leave open. The names of the
    engines' sockets begin with `prefix`.

    Raises SetupError, ModelConfigError, ModelSourceError or TokenizerError.
    """
    ignored = IgnoredKeys(options.ignore_config_keys, folder)
    try:
        read = read_model_config(folder, options.task, ignored.refuse)
    except TaskError as error:
        raise SetupError("task", f"{folder / 'config.json'}: {error}") from None
    generation = read_generation_defaults(folder, ignored.refuse)
    TokenizerSettings(folder, ignored.refuse).check_keys()
    ignored.check()
    check_template_files(folder)
    tokenized = with_tokenizer(read, options.load_format)
    sources = (*options.sources, str(folder))
    model = with_template(tokenized, sources, options.rerank, options.load_format, options.task)
    task = task_of(model)
    heads = check_checkpoint(model, options.load_format)
    check_stages(name, model, options)
    engine, *copies = (
        _engine(execution_config(name, model, task, options, prefix, copy), options, limits, heads)
        for copy in range(options.data_parallel_size)
    )
    return ServedModel(
        name=name, path=str(folder), engine=engine, copies=tuple(copies), generation=generation
    )


def _engine(
    execution: ExecutionConfig, options: EngineOptions, limits: Limits, heads: WeightHeads | None
) -> EngineConfig:
    """The engine of `execution`, whose memory sizes are decided. Raises SetupError."""
    execution = msgspec.structs.replace(execution, max_priority_wait=limits.max_priority_wait)
    _check_transport(execution)
    if execution.device_type != "cpu":
        execution = _on_gpus(execution, options, heads)
    elif execution.model.has_kv_cache and not options.kv_cache_memory:
        own = min(defaults.CPU_KV_CACHE_BYTES, largest_kv_cache(execution))
        execution = msgspec.structs.replace(execution, kv_cache_bytes=own)
    return EngineConfig(
        execution=execution,
        max_pending_rows=limits.max_sequences,
        max_pending_tokens=defaults.MAX_PENDING_TOKENS,
        max_queue_seconds=limits.max_queue_seconds,
        client_endpoint=f"ipc://{execution.start}.client",
        stall_timeout=options.stall_timeout,
        max_restarts=options.max_restarts,
        startup_timeout=options.startup_timeout,
    )


def check_stages(name: str, model: ModelConfig, options: EngineOptions) -> None:
    """Raises SetupError unless every stage can have the layers that it is to have."""
    layers, stages = options.stage_layers, options.pipeline_stages
    together = model.layers_together
    stay = f"the last {together} stay together: they share keys and values"
    if stages > model.num_layers - together + 1:
        reason = f", of which {stay}" if together > 1 else ""
        raise SetupError(
            "pipeline_stages",
            f"{name} has {model.num_layers} layers{reason}, too few for {stages} stages",
        )
    asked = ",".join(map(str, layers))
    if layers and len(layers) != stages:
        setting = options.setting_names["pipeline_stages"]
        raise SetupError(
            "stage_layers", f"{asked} are {len(layers)} stages, and {setting} is {stages}"
        )
    if layers and sum(layers) != model.num_layers:
        raise SetupError(
            "stage_layers", f"{asked} are {sum(layers)} layers, and {name} has {model.num_layers}"
        )
    if layers and layers[-1] < together:
        raise SetupError("stage_layers", f"{asked} part layers of {name}, of which {stay}")


def _check_transport(execution: ExecutionConfig) -> None:
    """Raises SetupError for a transport that is not for the stages' devices."""
    transport, device = execution.transport, execution.device_type
    for_cpus = transport == "gloo"
    if transport != "auto" and for_cpus != (device == "cpu"):
        ends = "CPUs" if for_cpus else "GPUs"
        raise SetupError(
            "transport", f"{transport} is between {ends}, and {execution.name} runs on {device}"
        )


def execution_config(
    name: str, model: ModelConfig, task: Task, options: EngineOptions, prefix: str, copy: int = 0
) -> ExecutionConfig:
    """The configuration but for default memory sizes, which follow from it. Raises SetupError."""
    _check_length(name, model, options.max_model_len)
    stages, copies, cluster = options.pipeline_stages, options.data_parallel_size, options.cluster
    devices, nodes = place_stages(options.device, stages, cluster, copies)
    prefix += copy_suffix(copy)
    on_cpu = devices[0] == "cpu"
    usual = defaults.dtype(model.checkpoint_dtype, on_cpu=on_cpu)
    dtype = usual if options.dtype == "auto" else options.dtype
    return ExecutionConfig(
        max_model_len=options.max_model_len or model.max_model_len,
        max_running=options.max_running or defaults.max_running(stages, on_cpu=on_cpu),
        max_step_tokens=options.max_step_tokens
        or defaults.max_step_tokens(cached=model.has_kv_cache, on_cpu=on_cpu),
        max_step_rows=options.max_step_rows,
        name=name,
        copy=copy if copies > 1 else None,
        model=_quantised(name, model, options.quantization),
        task=task,
        devices=devices[copy * stages : (copy + 1) * stages],
        nodes=nodes,
        cluster_keys=cluster and cluster.keys,
        stage_layers=options.stage_layers,
        steps_ahead=options.steps_ahead,
        transport=options.transport,
        dtype=dtype,
        load_format=options.load_format,
        attention_backend=options.attention_backend,
        disable_cascade_attn=options.disable_cascade_attn,
        threads=options.threads or _threads(nodes, len(devices), _hosts(cluster), on_cpu=on_cpu),
        cores=cores_of_copy(copy, copies) if on_cpu else (),
        block_size=options.block_size
        or defaults.block_size(generates=task == "generate", on_cpu=on_cpu),
        kv_cache_dtype=_kv_cache_dtype(options.kv_cache_dtype, model, dtype),
        kv_cache_bytes=options.kv_cache_memory or 0,
        worker_endpoint=cluster.worker_endpoint if cluster else f"ipc://{prefix}.workers",
        token_endpoint=cluster.token_endpoint if cluster else f"ipc://{prefix}.tokens",
        start=prefix,
        # A CPU is never as free as it was.
        choices_folder=f"{prefix}.choices" if on_cpu else str(cache_folder() / "choices"),
        log_level=options.log_level,
        setting_names=options.setting_names,
    )


def _quantised(name: str, model: ModelConfig, method: QuantizationMethod | None) -> ModelConfig:
    """`model` with the quantization that is asked for. Raises SetupError if it has one."""
    if method is None:
        return model
    if model.quantization is not None:
        reason = f"the weights of {name} are quantised already ({model.quantization.method})"
        raise SetupError("quantization", reason)
    return msgspec.structs.replace(model, quantization=FROM_16_BITS)


def _kv_cache_dtype(
    asked: KVCacheDtype, model: ModelConfig, dtype: Dtype
) -> Literal["auto", "fp8_e4m3"]:
    """The configuration's value for a setting, or by default for what the checkpoint says. Raises
    SetupError for another dtype than is computed with."""
    declared = model.quantization is not None and model.quantization.kv_cache_fp8
    if asked in ("fp8", "fp8_e4m3") or (asked == "auto" and declared):
        return "fp8_e4m3"
    if asked not in ("auto", dtype):
        reason = (
            f"{asked} is not what the model computes with, {dtype}; auto, {dtype} or fp8 would do"
        )
        raise SetupError("kv_cache_dtype", reason)
    return "auto"


def _check_length(name: str, model: ModelConfig, asked: int | None) -> None:
    """Raises SetupError for more tokens than the model takes."""
    if asked is None or asked <= model.max_model_len:
        return
    reason = f"{asked} is more than the {model.max_model_len} tokens of {name}"
    raise SetupError("max_model_len", reason)


def _on_gpus(
    execution: ExecutionConfig, options: EngineOptions, heads: WeightHeads | None
) -> ExecutionConfig:
    """`execution` with what is in its GPUs' memory. Raises SetupError if that is too little."""
    shares = _memory_shares(execution, options, heads)
    return msgspec.structs.replace(
        execution,
        keeps_weights=_keeps_weights(execution, options, heads, shares),
        memory_shares=() if options.kv_cache_memory else shares,
    )


def _memory_shares(
    execution: ExecutionConfig, options: EngineOptions, heads: WeightHeads | None
) -> tuple[int, ...]:
    """Bytes that each stage may take of its CUDA device. Raises SetupError if its weights and the
    activations that it receives need more."""
    hosts = _hosts(options.cluster)
    memory = [
        hosts[execution.node_of(stage)].gpu_memory[device_ordinal(device)]
        for stage, device in enumerate(execution.devices)
    ]
    shares = tuple(int(options.memory_share * total) for total in memory)
    name = execution.engine_name
    for stage, weights in enumerate(weight_bytes(execution, heads)):
        ring = execution.activation_bytes(stage)
        if weights + ring >= shares[stage]:
            raise SetupError(
                "memory_share",
                f"stage {stage} of {name} has {weights / _GIB:.1f} GiB of weights and "
                f"{ring / _GIB:.1f} GiB of buffers between stages, more than its share of "
                f"{execution.devices[stage]}: {shares[stage] / _GIB:.1f} of "
                f"{memory[stage] / _GIB:.1f} GiB; raise it, or use more stages or weights of fewer "
                "bits",
            )
    return shares


_HOLDERS_ROOM = 8 * HOLDER_BYTES
"""With fewer bytes of a stage's share beside its weights and buffers there is no holder."""


def _keeps_weights(
    execution: ExecutionConfig,
    options: EngineOptions,
    heads: WeightHeads | None,
    shares: Sequence[int],
) -> bool:
    """Whether holders keep the weights for stages that are started again. Weights that are
    quantised when they are loaded would be there twice."""
    quantization = execution.model.quantization
    converts = quantization is not None and not quantization.stored
    if not options.max_restarts or options.cluster or converts:
        return False
    for stage, weights in enumerate(weight_bytes(execution, heads)):
        if shares[stage] - weights - execution.activation_bytes(stage) < _HOLDERS_ROOM:
            _logger.warning(
                "a lost stage of %s will load its weights anew: stage %d has less than %.0f GiB of "
                "its memory share beside them, too little for a process that keeps them",
                *(execution.engine_name, stage, _HOLDERS_ROOM / _GIB),
            )
            return False
    return True


def _threads(nodes: Sequence[int], stages: int, hosts: Sequence[Host], *, on_cpu: bool) -> int:
    """The default of the host with the fewest cores for each of its stages, by their `nodes`. A
    host alone has all of them."""
    return min(
        defaults.threads(host.cores, nodes.count(rank) or stages, on_cpu=on_cpu)
        for rank, host in enumerate(hosts)
    )


def _hosts(cluster: Cluster | None) -> tuple[Host, ...]:
    return cluster.hosts if cluster else (Host("", available_cores(), cuda_memory()),)


_FILES = ("config.json", "generation_config.json", "tokenizer_config.json")


class IgnoredKeys:
    """Notes which of `names` would be refused in the files of `folder`. All other refusals go to
    `refuse`."""

    def __init__(self, names: Sequence[str], folder: Path, refuse: Refuse = stop) -> None:
        self._names, self._files = names, [folder / name for name in _FILES]
        self._refuse = refuse
        self._met: set[str] = set()

    def refuse(self, error: ModelConfigError) -> None:
        """A reader's `Refuse`."""
        match error:
            case UnsupportedKeyError(file=file, key=key) if (
                file in self._files and key in self._names
            ):
                self._met.add(key)
            case _:
                self._refuse(error)

    def check(self) -> None:
        """Raises SetupError, once all files are read, for a name without effect."""
        idle = [name for name in self._names if name not in self._met]
        if idle:
            reason = f"{', '.join(idle)}: none of {', '.join(_FILES)} has such a key to refuse"
            raise SetupError("ignore_config_keys", reason)


_GENERATION_NEUTRAL = (
    each("num_beams num_beam_groups typical_p encoder_repetition_penalty guidance_scale", 1, None)
    | each("penalty_alpha epsilon_cutoff eta_cutoff min_length min_new_tokens", 0, None)
    | each("no_repeat_ngram_size encoder_no_repeat_ngram_size", 0, None)
    | each("bad_words_ids force_words_ids suppress_tokens begin_suppress_tokens", [], None)
    | each("stop_strings", [], None)
    | each("sequence_bias", [], {}, None)
    | each("top_h exponential_decay_length_penalty watermarking_config dola_layers", None)
    | each("forced_bos_token_id forced_eos_token_id", None)
)
"""Keys of transformers' GenerationConfig (version 5) that are not supported here, with their values
that change nothing."""


class _GenerationFile(msgspec.Struct):
    """The keys that are obeyed, all optional. `TokenSampling` has the same names."""

    eos_token_id: int | list[int] | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=sys.float_info.max)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=2)] | None = None


def read_generation_defaults(folder: Path, refuse: Refuse = stop) -> GenerationDefaults:
    """Read `generation_config.json`. Without `eos_token_id` there, take that of `config.json`.

    An explicit `do_sample: false` means greedy. Keys that are not supported go to `refuse`. Raises
    ModelConfigError, naming file and key, for a value of the wrong type or out of range.
    """
    path, fallback = folder / "generation_config.json", folder / "config.json"
    values = optional(folder, path.name, dict[str, Any]) or {}
    raw = converted(path, values, _GenerationFile)
    ConfigKeys(path, values, refuse=refuse).neutral(_GENERATION_NEUTRAL)
    eos = raw.eos_token_id
    if eos is None:
        eos = converted(fallback, read_config(folder), _GenerationFile).eos_token_id
    if isinstance(eos, int):
        eos = [eos]
    if raw.do_sample is False:
        raw.temperature = 0.0
    sampling = TokenSampling().overridden_by(raw)
    return GenerationDefaults(eos_token_ids=tuple(eos or ()), sampling=sampling)


def with_template(
    model: ModelConfig,
    sources: tuple[str, ...],
    given: RerankTemplate | None,
    load: LoadFormat,
    asked: AskedTask | None = None,
) -> ModelConfig:
    """`model` with the template that is `given`, or that is known by one of the checkpoint's names,
    `sources`. Other models have none, and a classifier only needs one if `asked` to rerank.

    Raises SetupError for a template that is missing, wrong or not for this model; TokenizerError.
    """
    classifies = family_of(model.architecture).task == "classify" and model.has_kv_cache
    declared = model.reranking
    if declared is None and not classifies:
        if given is not None:
            raise SetupError("rerank", f"{model.architecture} is not used as a reranker")
        return model
    template = given or next(filter(None, map(template_of_name, sources)), None)
    if template is None and classifies and asked != "rerank":
        return model
    if template is None:
        keys = "pieces, instruction" if classifies else "pieces, positive, negative, instruction"
        raise SetupError(
            "task",
            f"how {sources[0]} is asked to rerank is not known by its name; give its template as "
            f"rerank in the configuration file: {keys}",
        )
    if given is not None and (fault := given.fault() or _misplaced(given, classifies=classifies)):
        raise SetupError("rerank", fault)
    if declared is None:
        complete = RerankConfig(template=template)
    else:
        key = "task" if given is None else "rerank"
        complete = _of_generator(declared, Tokenizer.for_model(model, load), template, key)
    return msgspec.structs.replace(model, reranking=complete)


def _misplaced(template: RerankTemplate, *, classifies: bool) -> str | None:
    """The fault in the answers of a template for such a model."""
    if classifies and template.answers:
        return "positive and negative are for generators; this model's classifier gives the score"
    if not classifies and template.positive is None:
        return "positive is missing: the token whose logit is the score"
    return None


def _of_generator(
    declared: RerankConfig, tokenizer: Tokenizer, template: RerankTemplate, key: str
) -> RerankConfig:
    """Complete what a generator declares. Raises SetupError for setting `key`."""
    if declared.instruction is not None:
        if not template.takes_instruction:
            reason = f"the checkpoint's default prompt ({declared.instruction!r}) has no place"
            raise SetupError(key, reason)
        template = msgspec.structs.replace(template, instruction=declared.instruction)
    ids = _token_ids(tokenizer, template, key)
    if declared.token_ids not in ((), ids):
        spelled = " and ".join(map(repr, template.answers))
        raise SetupError(
            key,
            f"the tokens {spelled} have the ids {ids}, and the checkpoint's LogitScore module "
            f"names {declared.token_ids}",
        )
    return msgspec.structs.replace(declared, template=template, token_ids=ids)


def _token_ids(tokenizer: Tokenizer, template: RerankTemplate, key: str) -> tuple[int, ...]:
    ids: list[int] = []
    for text in template.answers:
        (encoding,) = tokenizer.encodings([text], add_special_tokens=False)
        if len(encoding.ids) != 1:
            reason = f"{text!r} has to be one token of this model; it is {len(encoding.ids)}"
            raise SetupError(key, reason)
        if tokenizer.decode(encoding.ids, skip_special_tokens=False).strip() != text.strip():
            raise SetupError(key, f"{text!r} is not in this model's vocabulary")
        ids += encoding.ids
    return tuple(ids)
