"""Builds the configuration of an engine from a model's folder and its options.

Options that are not given get their defaults here, from `server/settings/defaults.py`.
"""

from pathlib import Path

import msgspec

from engine_core.config import EngineConfig
from engine_core.tokenization.tokenizer_settings import TokenizerSettings
from server.conversion.slow_tokenizer import with_tokenizer
from server.models.devices import available_cores, cuda_memory, device_ordinal, resolve_devices
from server.models.generation_file import read_generation_defaults
from server.models.ignored_keys import IgnoredKeys
from server.models.model_source import check_checkpoint
from server.models.reranker import with_template
from server.models.setup_error import SetupError
from server.models.stage_memory import largest_kv_cache, planned_layers, weight_bytes
from server.models.weight_heads import WeightHeads
from server.settings import defaults
from server.settings.engine_settings import EngineSettings
from server.settings.limits import Limits
from server.settings.server_config import ServedModel
from server.settings.setting_names import SettingNames
from server.templates.template_files import check_template_files
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.config import ExecutionConfig, Task
from workers.contract.families.table import TaskError, task_of
from workers.contract.model_config import ModelConfig
from workers.contract.reranking import RerankTemplate
from workers.contract.rope_config import DynamicScaling

_GIB = 1 << 30


class EngineOptions(EngineSettings, frozen=True, kw_only=True):
    """How an engine is run. `memory_share` is its own part of each of its CUDA devices. `sources`
    are names of the checkpoint besides its folder; `rerank` is a reranker's template.

    `setting_names` are what the engine's messages call its settings, by key.
    """

    memory_share: float = defaults.MEMORY_SHARE
    rerank: RerankTemplate | None = None
    sources: tuple[str, ...] = ()
    stall_timeout: float = defaults.STALL_TIMEOUT
    log_level: str = defaults.LOG_LEVEL
    setting_names: dict[str, str] = msgspec.field(
        default_factory=lambda: SettingNames().of_engine(0)
    )


def set_up_model(
    name: str, folder: Path, options: EngineOptions, limits: Limits, prefix: str
) -> ServedModel:
    """Read the checkpoint's configuration and apply the defaults of settings that are not given.

    The names of the engine's sockets begin with `prefix`.

    Raises SetupError, ModelConfigError, ModelSourceError, TokenizerError or
    UnknownArchitectureError.
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
    execution = execution_config(name, model, task, options, prefix)
    execution = msgspec.structs.replace(execution, max_priority_wait=limits.max_priority_wait)
    _check_transport(execution)
    if execution.device_type != "cpu":
        shares = _memory_shares(execution, options.memory_share, heads)
        if not options.kv_cache_memory:
            execution = msgspec.structs.replace(execution, memory_shares=shares)
    elif model.has_kv_cache and not options.kv_cache_memory:
        own = min(defaults.CPU_KV_CACHE_BYTES, largest_kv_cache(execution))
        execution = msgspec.structs.replace(execution, kv_cache_bytes=own)
    engine = EngineConfig(
        execution=execution,
        max_pending_rows=limits.max_sequences,
        max_pending_tokens=defaults.MAX_PENDING_TOKENS,
        max_queue_seconds=limits.max_queue_seconds,
        client_endpoint=f"ipc://{prefix}.client",
        stall_timeout=options.stall_timeout,
    )
    return ServedModel(name=name, path=str(folder), engine=engine, generation=generation)


def check_stages(name: str, model: ModelConfig, options: EngineOptions) -> None:
    """Raises SetupError unless every stage can have the layers that it is to have."""
    layers, stages = options.stage_layers, options.pipeline_stages
    if stages > model.num_layers:
        raise SetupError(
            "pipeline_stages", f"{name} has {model.num_layers} layers, too few for {stages} stages"
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
    name: str, model: ModelConfig, task: Task, options: EngineOptions, prefix: str
) -> ExecutionConfig:
    """The configuration without the default memory sizes, which are computed from it.

    Raises SetupError.
    """
    _check_length(name, model, options.max_model_len)
    stages = options.pipeline_stages
    devices = resolve_devices(options.device, stages)
    on_cpu = devices[0] == "cpu"
    return ExecutionConfig(
        max_model_len=options.max_model_len or model.max_model_len,
        max_running=options.max_running or defaults.max_running(stages, on_cpu=on_cpu),
        max_step_tokens=options.max_step_tokens
        or defaults.max_step_tokens(cached=model.has_kv_cache, on_cpu=on_cpu),
        name=name,
        model=model,
        task=task,
        devices=devices,
        stage_layers=options.stage_layers,
        steps_ahead=options.steps_ahead,
        transport=options.transport,
        dtype=(
            defaults.dtype(model.checkpoint_dtype, on_cpu=on_cpu)
            if options.dtype == "auto"
            else options.dtype
        ),
        load_format=options.load_format,
        attention_backend=options.attention_backend,
        disable_cascade_attn=options.disable_cascade_attn,
        threads=options.threads or defaults.threads(available_cores(), stages, on_cpu=on_cpu),
        block_size=options.block_size
        or defaults.block_size(generates=task == "generate", on_cpu=on_cpu),
        kv_cache_bytes=options.kv_cache_memory or 0,
        memory_shares=(),
        worker_endpoint=f"ipc://{prefix}.workers",
        token_endpoint=f"ipc://{prefix}.tokens",
        rendezvous=f"{prefix}.rendezvous",
        log_level=options.log_level,
        setting_names=options.setting_names,
    )


def _check_length(name: str, model: ModelConfig, asked: int | None) -> None:
    """Raises SetupError for more tokens than the model takes."""
    if asked is not None and asked > model.max_model_len:
        reason = f"{asked} is more than the {model.max_model_len} tokens of {name}"
        raise SetupError("max_model_len", reason + _why_no_longer(model))


def _why_no_longer(model: ModelConfig) -> str:
    ropes = [kind.rope for kind in model.attention if kind.rope is not None]
    if any(isinstance(rope.scaling, DynamicScaling) for rope in ropes):
        return ": beyond them its rope type, dynamic, would depend on the other texts of a batch"
    return ""


def _memory_shares(
    execution: ExecutionConfig, share: float, heads: WeightHeads | None
) -> tuple[int, ...]:
    """Bytes that each stage may take of its CUDA device.

    Raises SetupError if a stage's weights and the activations that it receives need more.
    """
    memory = [cuda_memory()[device_ordinal(device)] for device in execution.devices]
    shares = tuple(int(share * total) for total in memory)
    ring = execution.activation_ring_bytes
    for stage, weights in enumerate(weight_bytes(execution, heads)):
        if weights + ring >= shares[stage]:
            raise SetupError(
                "memory_share",
                f"{_contents(execution, stage, weights)}, more than its share of "
                f"{execution.devices[stage]}: {shares[stage] / _GIB:.1f} of "
                f"{memory[stage] / _GIB:.1f} GiB; raise it, or use more stages",
            )
    return shares


def _contents(execution: ExecutionConfig, stage: int, weights: int) -> str:
    """What a stage has in memory before it has a KV cache, in words."""
    has = f"has {weights / _GIB:.1f} GiB of weights"
    if execution.num_stages == 1:
        return f"{execution.name} {has}"
    layers, ring = planned_layers(execution)[stage], execution.activation_ring_bytes
    return (
        f"stage {stage} of {execution.name}, {layers} of {execution.model.num_layers} layers, "
        f"{has} and {ring / _GIB:.1f} GiB of buffers between stages"
    )
