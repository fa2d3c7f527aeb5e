"""Builds the configuration of an engine from a model's folder and its options.

Options that are not given get their defaults here, from `server/settings/defaults.py`.
"""

from pathlib import Path

import msgspec

from engine_core.config import EngineConfig
from server.models.devices import available_cores, cuda_memory, device_ordinal, resolve_devices
from server.models.generation_file import read_generation_defaults
from server.models.model_source import check_checkpoint
from server.settings import defaults
from server.settings.engine_settings import EngineSettings
from server.settings.server_config import Limits, ServedModel
from server.settings.setting_names import SettingNames, flag_name
from workers.contract.checkpoint_config import read_model_config
from workers.contract.config import ITEM_BYTES, Dtype, ExecutionConfig, Task
from workers.contract.families import family_of
from workers.contract.model_config import ModelConfig

_GIB = 1 << 30


class SetupError(ValueError):
    """The setting `key` does not suit the model or other settings; `reason` is one line."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{flag_name(key)}: {reason}")
        self.key = key
        self.reason = reason


class EngineOptions(EngineSettings, frozen=True, kw_only=True):
    """How an engine is run. `memory_share` is its own part of each of its CUDA devices.

    `setting_names` are what the engine's messages call its settings, by key.
    """

    memory_share: float = defaults.MEMORY_SHARE
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

    Raises SetupError, ModelConfigError, ModelSourceError, TokenizerError, UnknownArchitectureError
    or DeviceError.
    """
    model = read_model_config(folder)
    task = family_of(model.architecture).task
    check_checkpoint(model, options.load_format)
    _check_stages(name, model, options)
    execution = _execution_config(name, model, task, options, prefix)
    _check_transport(execution)
    if execution.device_type != "cpu":
        share = _memory_share(execution, options.memory_share)
        if not options.kv_cache_memory:
            execution = msgspec.structs.replace(execution, memory_share_bytes=share)
    elif task == "generate" and not options.kv_cache_memory:
        own = _cpu_kv_cache_bytes(execution)
        execution = msgspec.structs.replace(execution, kv_cache_bytes=own)
    engine = EngineConfig(
        execution=execution,
        max_pending_rows=limits.max_rows,
        max_pending_tokens=limits.max_tokens,
        max_queue_seconds=limits.max_queue_seconds,
        client_endpoint=f"ipc://{prefix}.client",
        stall_timeout=options.stall_timeout,
    )
    generation = read_generation_defaults(folder)
    return ServedModel(name=name, path=str(folder), engine=engine, generation=generation)


def _check_stages(name: str, model: ModelConfig, options: EngineOptions) -> None:
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


def _execution_config(
    name: str, model: ModelConfig, task: Task, options: EngineOptions, prefix: str
) -> ExecutionConfig:
    """The configuration without the default memory sizes, which are computed from it."""
    stages = options.pipeline_stages
    devices = resolve_devices(options.device, stages)
    on_cpu = devices[0] == "cpu"
    return ExecutionConfig(
        **_limits(name, model, task, options, on_cpu=on_cpu),
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
        threads=options.threads or defaults.threads(available_cores(), stages, on_cpu=on_cpu),
        block_size=options.block_size or defaults.block_size(on_cpu=on_cpu),
        kv_cache_bytes=options.kv_cache_memory or 0,
        worker_endpoint=f"ipc://{prefix}.workers",
        token_endpoint=f"ipc://{prefix}.tokens",
        rendezvous=f"{prefix}.rendezvous",
        log_level=options.log_level,
        setting_names=options.setting_names,
    )


def _limits(
    name: str, model: ModelConfig, task: Task, options: EngineOptions, *, on_cpu: bool
) -> dict[str, int]:
    """The fields of EngineLimits: each is the option of its name, or else the default."""
    asked = options.max_model_len
    if asked is not None and asked > model.max_model_len:
        raise SetupError(
            "max_model_len", f"{asked} is more than the {model.max_model_len} tokens of {name}"
        )
    limits = msgspec.structs.asdict(defaults.engine_limits(model, task, on_cpu=on_cpu))
    for key in limits:
        if (given := getattr(options, key)) is not None:
            limits[key] = given
    return limits


def _cpu_kv_cache_bytes(execution: ExecutionConfig) -> int:
    """Bytes of each stage's KV cache: enough for all sequences at full length, up to a maximum."""
    model = execution.model
    layers = -(-model.num_layers // execution.num_stages)
    blocks = execution.max_running * -(-execution.max_model_len // execution.block_size)
    item = ITEM_BYTES[execution.dtype]
    needed = blocks * execution.block_size * 2 * layers * model.num_kv_heads * model.head_dim * item
    return min(defaults.CPU_KV_CACHE_BYTES, needed)


def _memory_share(execution: ExecutionConfig, share: float) -> int:
    """Bytes that an engine may take of each of its CUDA devices.

    Raises SetupError if the weights need more.
    """
    memory = min(cuda_memory()[device_ordinal(gpu)] for gpu in execution.gpus)
    own = int(share * memory)
    weights = weight_bytes(execution.model, execution.dtype) // execution.num_stages
    if weights >= own:
        raise SetupError(
            "memory_share",
            f"{execution.name} has {weights / _GIB:.1f} GiB of weights, more than its share of "
            f"{', '.join(execution.gpus)}: {own / _GIB:.1f} of {memory / _GIB:.1f} GiB; raise it",
        )
    return own


def weight_bytes(model: ModelConfig, dtype: Dtype) -> int:
    """Bytes of a decoder's matrices over all stages (norms and biases are too small to count)."""
    hidden, kv_size = model.hidden_size, model.num_kv_heads * model.head_dim
    attention = hidden * (2 * model.num_heads * model.head_dim + 2 * kv_size)
    layer = attention + 3 * hidden * model.intermediate_size
    embeddings = model.vocab_size * hidden * (1 if model.tie_word_embeddings else 2)
    return (model.num_layers * layer + embeddings) * ITEM_BYTES[dtype]
