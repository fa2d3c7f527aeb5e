"""The daemon's settings, by flags or in a configuration file: one set of names.

`flags.py` merges flags over the file. `server/models/model_setup.py` decides what is not given,
from the model, its device and `defaults.py`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine_core.config import EngineConfig
from server.settings import defaults
from server.settings.api_keys import APIKey
from server.settings.setting_types import (
    Bytes,
    ClusterAddress,
    Count,
    DeviceName,
    FlagGroup,
    KeyNames,
    KeyText,
    Names,
    Origin,
    Port,
    Positive,
    PriorityRange,
    Seconds,
    Share,
    StageLayers,
    Text,
    TracesEndpoint,
    ZeroOrOne,
)
from workers.contract.attention_backends import AttentionBackendName
from workers.contract.config import (
    AskedTask,
    Dtype,
    ExecutionConfig,
    KVCacheDtype,
    LoadFormat,
    TransportName,
)
from workers.contract.quantization import QuantizationMethod
from workers.contract.reranking import RerankTemplate
from workers.contract.token_sampling import TokenSampling


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the daemon, of one request, and of what a client stores. Sizes are in bytes.

    `max_sequences` and `max_queue_seconds` are for each model, `max_unread_size` for each API
    process. 0 seconds of waiting or running are no limit. Without a `priority_range` 0 is the only
    priority.
    """

    max_sequences: Annotated[
        Positive,
        FlagGroup.LIMITS("prompts, inputs and documents in flight; more are answered with 429"),
    ] = 16_384
    max_queue_seconds: Annotated[
        Seconds,
        FlagGroup.LIMITS(
            "longest expected wait until a request begins, for each model; those that would wait "
            "longer are answered with 429 (default: 30; 0: no limit)"
        ),
    ] = 30.0
    max_body_size: Annotated[Bytes, FlagGroup.LIMITS("largest body of a request")] = 8 << 20
    max_unread_size: Annotated[
        Bytes,
        FlagGroup.LIMITS(
            "bytes of bodies, waiting conversations, log-probabilities and unread answers, in each "
            "API process; beyond it the largest request gets 429, or the slowest reader is cut off"
        ),
    ] = 256 << 20
    vector_cache_size: Annotated[
        Bytes | None,
        FlagGroup.LIMITS(
            "bytes of vectors and scores that each API process keeps, for the same text of one "
            "API key (default: none are kept)"
        ),
    ] = None
    max_unread_seconds: Annotated[
        Seconds,
        FlagGroup.LIMITS("a client that reads nothing of its answer for so long is cut off"),
    ] = 120.0
    max_inputs: Annotated[Positive, FlagGroup.LIMITS("most prompts or inputs of a request")] = 2048
    max_documents: Annotated[Positive, FlagGroup.LIMITS("most documents of a rerank request")] = (
        1000
    )
    max_n: Annotated[Positive, FlagGroup.LIMITS("most choices for each prompt")] = 128
    priority_range: Annotated[
        PriorityRange | None,
        FlagGroup.LIMITS(
            "lowest and highest priority that a request may name, such as "
            "--priority-range=-1:1; the lowest begin first (default: none but 0)"
        ),
    ] = None
    max_priority_wait: Annotated[
        Seconds, FlagGroup.LIMITS("what has waited so long goes before every priority")
    ] = 10.0
    max_request_seconds: Annotated[
        Seconds,
        FlagGroup.LIMITS(
            "longest time that a request may run; texts end there, all else is answered with 504 "
            "(default: 0: no limit)"
        ),
    ] = 0.0
    max_file_size: Annotated[Bytes, FlagGroup.STORAGE("largest file")] = 512 << 20
    max_file_lines: Annotated[Positive, FlagGroup.STORAGE("most lines of a file")] = 50_000
    max_stored_size: Annotated[
        Bytes,
        FlagGroup.STORAGE(
            "most bytes of files and responses of one API key, or of all clients if there are no "
            "keys"
        ),
    ] = 16 << 30


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is run. None: it depends on model and device."""

    max_model_len: Annotated[
        Positive | None,
        FlagGroup.MODELS(
            "most tokens of a prompt and its answer together (default: the model's limit)", "TOKENS"
        ),
    ] = None
    task: Annotated[
        AskedTask | None,
        FlagGroup.MODELS(
            "generate, embed or rerank (default: what the checkpoint's modules.json says, or else "
            "its architecture)",
            "TASK",
        ),
    ] = None
    ignore_config_keys: Annotated[
        KeyNames,
        FlagGroup.MODELS(
            "keys of config.json, generation_config.json and tokenizer_config.json that may stay "
            "unread although nothing here obeys them, such as one of training (default: none)"
        ),
    ] = ()
    load_format: Annotated[
        LoadFormat,
        FlagGroup.MODELS(
            "auto reads safetensors; dummy makes up weights for config.json, to measure speed "
            "(default: auto)",
            "FORMAT",
        ),
    ] = "auto"
    device: Annotated[
        DeviceName,
        FlagGroup.ENGINES(
            "cpu, cuda, or cuda:N for the first stage, with the next devices for the others "
            "(default: auto, CUDA if there is a device)"
        ),
    ] = "auto"
    dtype: Annotated[
        Dtype | Literal["auto"],
        FlagGroup.ENGINES(
            "of weights and activations: float32, bfloat16 or float16 (default: auto, float32 on "
            "a CPU, the checkpoint's half precision on CUDA)",
            "DTYPE",
        ),
    ] = "auto"
    quantization: Annotated[
        QuantizationMethod | None,
        FlagGroup.ENGINES(
            "fp8 makes weights of linear layers FP8 as they are loaded, each row with a scale "
            "(default: as the checkpoint has them)",
            "METHOD",
        ),
    ] = None
    pipeline_stages: Annotated[
        Positive,
        FlagGroup.ENGINES(
            "processes that each compute a part of the layers, on CUDA each on its own GPU"
        ),
    ] = defaults.PIPELINE_STAGES
    data_parallel_size: Annotated[
        Positive,
        FlagGroup.ENGINES(
            "copies of the engine, which share the model's requests; each has --pipeline-stages "
            "processes of its own, on CUDA the next GPUs"
        ),
    ] = defaults.DATA_PARALLEL_SIZE
    stage_layers: Annotated[
        StageLayers,
        FlagGroup.ENGINES(
            "how many layers each stage computes, such as 9,8,8,7 (default: so that the slowest "
            "stage takes the least time, as measured at start)"
        ),
    ] = ()
    steps_ahead: Annotated[
        ZeroOrOne,
        FlagGroup.ENGINES(
            "1 submits the next step of the oldest requests before the tokens of their last one "
            "are known; 0 waits for them (synchronous scheduling), and costs speed. Of an encoder "
            "1 submits the next step while one is computed"
        ),
    ] = 1
    transport: Annotated[
        TransportName,
        FlagGroup.ENGINES(
            "how a stage gives activations to the next: gloo between CPUs; between GPUs "
            "peer-memory, which copies them into the other GPU's memory, or nccl (default: auto, "
            "on GPUs peer-memory where they reach each other's memory)",
            "NAME",
        ),
    ] = "auto"
    threads: Annotated[
        Positive | None,
        FlagGroup.ENGINES(
            "CPU threads of each stage (default: on a CPU, the cores divided by all stages)"
        ),
    ] = None
    attention_backend: Annotated[
        AttentionBackendName,
        FlagGroup.ENGINES(
            f"one of {', '.join(AttentionBackendName)}; naive is slow and simple, for "
            "comparison (default: auto, the fastest that works)",
            "NAME",
        ),
    ] = AttentionBackendName.AUTO
    disable_cascade_attn: Annotated[
        bool,
        FlagGroup.ENGINES(
            "attend to the whole context row by row, even where rows share a prefix (default: "
            "prefixes are attended once for all rows that share them, where that is faster)"
        ),
    ] = False
    max_running: Annotated[
        Positive | None,
        FlagGroup.CAPACITY(
            "sequences that generate at once "
            f"(default: {defaults.max_running(on_cpu=True)} on a CPU, on CUDA "
            f"{defaults.max_running(on_cpu=False)} times --pipeline-stages)"
        ),
    ] = None
    max_step_tokens: Annotated[
        Positive | None,
        FlagGroup.CAPACITY(
            "most tokens of one step "
            f"(default: {defaults.max_step_tokens(cached=True, on_cpu=True)} for a decoder and "
            f"{defaults.max_step_tokens(cached=False, on_cpu=True)} for an encoder on a CPU, "
            f"{defaults.max_step_tokens(cached=True, on_cpu=False)} and "
            f"{defaults.max_step_tokens(cached=False, on_cpu=False)} on CUDA)",
            "TOKENS",
        ),
    ] = None
    max_step_rows: Annotated[
        Positive | None,
        FlagGroup.CAPACITY(
            "most texts of one step of an encoder, beside --max-step-tokens (default: as many as "
            "have so many tokens)",
            "TEXTS",
        ),
    ] = None
    kv_cache_memory: Annotated[
        Bytes | None,
        FlagGroup.CAPACITY(
            "size of each stage's key-value cache, such as 2GiB (default: on a CPU what "
            f"--max-running needs, at most {defaults.CPU_KV_CACHE_BYTES >> 30}GiB; on CUDA what "
            "weights and the largest step leave of --memory-share)"
        ),
    ] = None
    kv_cache_dtype: Annotated[
        KVCacheDtype,
        FlagGroup.CAPACITY(
            "of cached keys and values: fp8 (or fp8_e4m3) takes half of bfloat16's memory; a dtype "
            "has to be --dtype's (default: auto, as the checkpoint says, else as --dtype)",
            "DTYPE",
        ),
    ] = "auto"
    block_size: Annotated[
        Positive | None,
        FlagGroup.CAPACITY(
            "tokens in a block, the unit in which the cache is allocated and shared "
            f"(default: {defaults.block_size(on_cpu=True)} on a CPU; on CUDA "
            f"{defaults.block_size(on_cpu=False)} for a generator and "
            f"{defaults.block_size(generates=False, on_cpu=False)} for others)",
            "TOKENS",
        ),
    ] = None


class ModelSettings(EngineSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model, a folder or a hub id. Three keys have no flag.

    `memory_share` is this engine's share of each of its CUDA devices, `max_queue_seconds` replaces
    the daemon's, and `rerank` is a causal reranker's template.
    """

    model: Text
    names: Annotated[
        Names,
        FlagGroup.MODELS(
            "the model's name in requests, or several names with commas; answers have the first. "
            "Once for each MODEL, in the same order (default: the folder's name, or the hub id)"
        ),
    ] = ()
    memory_share: Share | None = None
    max_queue_seconds: Seconds | None = None
    rerank: RerankTemplate | None = None


LIST_FLAGS = {
    "api_key_files": "--api-key-file",
    "cors_origins": "--cors-origin",
    "share_prefixes": "--share-prefixes",
    "names": "--served-model-name",
}
"""Flags that are given once for each item of a list."""


class SettingNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of settings in messages: a key in `file`, or a flag if there is none or the key is
    among `flags`."""

    file: str | None = None
    flags: frozenset[str] = frozenset()

    def of(self, key: str, model: int | None = None) -> str:
        """Such as `--port`, or `penstock.yaml: models[0].device`."""
        if self.file is None or (model is None and key in self.flags):
            return flag_name(key)
        return f"{self.file}: {key}" if model is None else f"{self.file}: models[{model}].{key}"

    def inside(self, key: str, model: int | None = None) -> str:
        """The name inside a sentence, such as `models[0].device of penstock.yaml`."""
        where, _, path = self.of(key, model).rpartition(": ")
        return f"{path} of {where}" if where else path

    def of_engine(self, model: int) -> dict[str, str]:
        """The names inside an engine's messages of the settings of model number `model`."""
        keys = (*EngineSettings.__struct_fields__, "memory_share")
        names = {key: self.inside(key, model) for key in keys}
        own = ("stall_timeout", "startup_timeout")
        return names | {key: self.inside(key) for key in own}


def flag_name(key: str) -> str:
    return LIST_FLAGS.get(key) or "--" + key.replace("_", "-")


RETIRED = {
    "max_requests": "max_sequences bounds what is in flight, max_unread_size what is held for it",
    "max_reading_size": "max_unread_size bounds all that a process holds, bodies on their way too",
    "no_groups": "prompts share by token, and nothing without prefix caching",
}
"""Settings that are gone, and what there is instead."""

NO_STATE = "none"
"""As `state_dir`: clients can store nothing."""

API_KEY_VARIABLE = "PENSTOCK_API_KEY"

LogLevel = Literal["debug", "info", "warning", "error"]
Interface = Annotated[
    Text | None,
    FlagGroup.HOSTS(
        "network interface between the nodes (default: the one whose address reaches --master)",
        "NAME",
    ),
]
LogFormat = Literal["text", "json"]
"""How a line of the access log is written."""


class SettingsError(ValueError):
    """The settings are not valid. One line names the flag, or the file and the key."""


class DaemonSettings(Limits, frozen=True, kw_only=True):
    """The daemon: where it listens, who may call it, how much it admits.

    Engines with a `memory_share` of their own take theirs first. Times are in seconds.
    """

    default_model: Annotated[
        Text | None,
        FlagGroup.MODELS(
            "a name of the model that answers requests for a model that nobody serves, or for none "
            "of several, if it serves their endpoint (default: none, such requests are refused)",
            "NAME",
        ),
    ] = None
    host: Annotated[Text, FlagGroup.HTTP("address to listen on")] = "127.0.0.1"
    port: Annotated[Port, FlagGroup.HTTP("0: any free port")] = 8000
    api_workers: Annotated[Positive, FlagGroup.HTTP("processes that speak HTTP")] = 1
    strict_fields: Annotated[
        bool, FlagGroup.HTTP("refuse bodies with unknown fields (default: ignore unknown fields)")
    ] = False
    metrics_alias: Annotated[
        Literal["vllm"] | None,
        FlagGroup.HTTP(
            "show the metrics once more under the names of another server, which dashboards and "
            "routers may read: vllm (default: none)",
            "NAME",
        ),
    ] = None
    access_log: Annotated[
        LogFormat | None,
        FlagGroup.HTTP(
            "write a line for each request to standard output, as text or json (default: none)",
            "FORMAT",
        ),
    ] = None
    otlp_traces_endpoint: Annotated[
        TracesEndpoint | None,
        FlagGroup.HTTP(
            "send OpenTelemetry traces of requests to this URL of a collector, by OTLP over HTTP, "
            "such as http://localhost:4318/v1/traces (default: none; needs penstock[otel])"
        ),
    ] = None
    api_key_files: Annotated[
        tuple[str, ...],
        FlagGroup.ACCESS(
            "file with one key a line, # begins a comment; may be given several times. A request "
            "needs any one of all keys (default: none)",
            "FILE",
        ),
    ] = ()
    metrics_key: Annotated[
        bool,
        FlagGroup.ACCESS(
            "ask for an API key for /metrics too, which names keys and models (default: open)"
        ),
    ] = False
    tls_cert: Annotated[
        str | None,
        FlagGroup.ACCESS(
            "serve HTTPS with this certificate, or chain, in PEM (default: HTTP)", "FILE"
        ),
    ] = None
    tls_key: Annotated[
        str | None,
        FlagGroup.ACCESS("its private key, not encrypted, in PEM (default: none)", "FILE"),
    ] = None
    share_prefixes: Annotated[
        tuple[str, ...],
        FlagGroup.ACCESS(
            "let API keys of this name find in the prefix cache what others so named have "
            "computed; all for every key; may be given several times (default: none)",
            "NAME",
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[Origin, ...],
        FlagGroup.ACCESS(
            "let pages of this origin call the daemon from a browser, such as "
            "https://chat.example.org; * for any; may be given several times (default: none)"
        ),
    ] = ()
    state_dir: Annotated[
        Text | None,
        FlagGroup.STORAGE(
            "folder for the files and batches of clients; none: they can store nothing (default: "
            "penstock in $XDG_STATE_HOME, which is ~/.local/state if it is not set)",
            "FOLDER",
        ),
    ] = None
    memory_share: Annotated[
        Share,
        FlagGroup.CAPACITY(
            "fraction of each CUDA device's memory that all engines together may use, for weights, "
            "cache and everything else"
        ),
    ] = defaults.MEMORY_SHARE
    executor: Annotated[
        Literal["processes", "ray"],
        FlagGroup.HOSTS(
            "who starts the other nodes: processes that run `penstock join`, or ray, actors of a "
            "Ray cluster (default: processes; ray needs penstock[ray])",
            "NAME",
        ),
    ] = "processes"
    ray_address: Annotated[
        ClusterAddress | None,
        FlagGroup.HOSTS(
            "the Ray cluster that this host belongs to (default: $RAY_ADDRESS, or the one that "
            "runs on this host)"
        ),
    ] = None
    nodes: Annotated[
        Positive,
        FlagGroup.HOSTS(
            "hosts that divide the stages of one model: this one, and those on which `penstock "
            "join` or Ray runs"
        ),
    ] = 1
    master: Annotated[
        ClusterAddress | None,
        FlagGroup.HOSTS(
            "this host's address for the others, with the first of three ports (default: none; "
            "needed for --nodes)"
        ),
    ] = None
    cluster_secret_file: Annotated[
        Text | None,
        FlagGroup.HOSTS(
            "file with the secret of all nodes, readable by nobody else (default: none; needed for "
            "--nodes)",
            "FILE",
        ),
    ] = None
    interface: Interface = None
    startup_timeout: Annotated[Seconds, FlagGroup.LIFE("give up if not ready after this time")] = (
        defaults.STARTUP_TIMEOUT
    )
    drain_timeout: Annotated[
        Seconds,
        FlagGroup.LIFE(
            "time for running requests to finish on SIGTERM or Ctrl-C, or if a process died; a "
            "second signal ends them at once"
        ),
    ] = 30.0
    stall_timeout: Annotated[
        Seconds,
        FlagGroup.LIFE(
            "a step of a model, or a process, that hangs for this long is lost; 0, for debuggers: "
            "never, and idle engines and workers are not watched either"
        ),
    ] = defaults.STALL_TIMEOUT
    max_restarts: Annotated[
        Count,
        FlagGroup.LIFE(
            "start a model's stages, its engine or an API process again when one is lost, at most "
            "this often in 10 minutes each; after that, or with 0, the daemon finishes what runs "
            "elsewhere and ends"
        ),
    ] = defaults.MAX_RESTARTS
    log_level: Annotated[LogLevel, FlagGroup.LIFE("debug, info, warning or error", "LEVEL")] = (
        defaults.LOG_LEVEL
    )


class Settings(DaemonSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. Without `models` the demo models are served."""

    models: Annotated[tuple[ModelSettings, ...], Meta(min_length=1)] = ()


class ServeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The request to `penstock serve`. `api_key` is added to the keys of the files."""

    settings: Settings
    api_key: Annotated[
        KeyText | None,
        FlagGroup.ACCESS(
            f"require this key in every request (default: ${API_KEY_VARIABLE}, which other users "
            "of the machine cannot see; no key if unset)"
        ),
    ] = None
    setting_names: SettingNames = SettingNames()


_TRACES_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of what clients store, whose database is marked with `token`.

    Without one, `fault` says why. The `secret`, which without a folder is of this start, signs what
    clients keep and send back.
    """

    folder: str | None = None
    secret: str = ""
    token: int = 0
    fault: str = ""
    switched_off: bool = False


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids that end a text, and sampling parameters for requests that give none."""

    eos_token_ids: tuple[int, ...] = ()
    sampling: TokenSampling = TokenSampling()


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the daemon. `name` is the one in answers; requests may use `aliases` as well.
    The `copies` of its engine differ from it in their devices, sockets and number."""

    name: str
    aliases: tuple[str, ...] = ()
    path: str
    engine: EngineConfig
    copies: tuple[EngineConfig, ...] = ()
    generation: GenerationDefaults

    @property
    def execution(self) -> ExecutionConfig:
        return self.engine.execution

    @property
    def engines(self) -> tuple[EngineConfig, ...]:
        return self.engine, *self.copies


class TLS(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of the PEM files for HTTPS. `cert` may hold a chain."""

    cert: str
    key: str


class ServerConfig(DaemonSettings, frozen=True, kw_only=True):
    """The daemon's settings, with all that was left open decided.

    `port` is the bound one, 0 only where nothing listens. Cache salts of keys are made with
    `cache_secret`. `count_files` hold the counts of the API processes, one for each, by the names
    of `counted_keys` (None: of all keys). `process_file` names the daemon's processes. In
    `batch_file` (None: there are no batches) the batch process says whether it can run.
    """

    api_keys: tuple[APIKey, ...] = ()
    cache_secret: str = ""
    tls: TLS | None = None
    count_files: tuple[str, ...] = ()
    counted_keys: tuple[str, ...] | None = None
    process_file: str | None = None
    batch_file: str | None = None
    state: State = State()
    models: tuple[ServedModel, ...]

    @property
    def url(self) -> str:
        """The daemon's address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls is None else 'https'}://{host}:{self.port}"

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names by which requests are counted."""
        if self.counted_keys is not None:
            return self.counted_keys
        return tuple(dict.fromkeys(key.name for key in self.api_keys))


def unattended(
    settings: DaemonSettings, models: tuple[ServedModel, ...], secret: str = ""
) -> ServerConfig:
    """The configuration of an application without HTTP or keys, for lines: of `settings`, only what
    concerns requests. The `secret` is that of `State`."""
    state = State(secret=secret, fault="nothing is stored for a line")
    kept = (*Limits.__struct_fields__, "default_model", "strict_fields", "log_level")
    return ServerConfig(models=models, state=state, **{key: getattr(settings, key) for key in kept})


def api_key_from(environment: Mapping[str, str] = os.environ) -> str | None:
    return environment.get(API_KEY_VARIABLE) or None


def traces_protocol_from(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The variable that says how traces are sent, and its value. Empty texts if none does."""
    said = ((variable, environment.get(variable, "")) for variable in _TRACES_PROTOCOLS)
    return next((each for each in said if each[1]), ("", ""))


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of what can be made again (XDG Base Directory)."""
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "penstock"


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of what outlives the program (XDG Base Directory)."""
    return Path(environment.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "penstock"


def child_environment(
    *,
    compute_threads: int = 1,
    tokenizer_threads: int = 1,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The environment of a child process: this one's and `settings`.

    Its libraries' thread pools are sized, and the API key is left out, of which children need only
    the digest."""
    own = {name: value for name, value in environment.items() if name != API_KEY_VARIABLE}
    compute = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(compute_threads)
    )
    tokenizing = {
        "RAYON_NUM_THREADS": str(tokenizer_threads),
        "TOKENIZERS_PARALLELISM": "true" if tokenizer_threads > 1 else "false",
    }
    return {**own, **compute, **tokenizing, **(settings or {})}
