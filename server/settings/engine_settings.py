"""The settings of a model and its engine: type, default, flag and help of each.

None: the default depends on model and device, see `server.settings.defaults`.
"""

from typing import Annotated, Literal

import msgspec

from server.settings import defaults
from server.settings.flag_declaration import Flag, FlagGroup
from server.settings.setting_types import (
    Bytes,
    DeviceName,
    KeyNames,
    Names,
    Positive,
    Seconds,
    Share,
    StageLayers,
    Text,
    ZeroOrOne,
)
from workers.contract.attention_backends import AttentionBackendName
from workers.contract.config import AskedTask, Dtype, LoadFormat, TransportName
from workers.contract.reranking import RerankTemplate


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is run. None: it depends on model and device."""

    max_model_len: Annotated[
        Positive | None,
        Flag(
            FlagGroup.MODELS,
            "most tokens of a prompt and its answer together (default: the model's limit)",
            "TOKENS",
        ),
    ] = None
    task: Annotated[
        AskedTask | None,
        Flag(
            FlagGroup.MODELS,
            "generate, embed or rerank (default: what the checkpoint's modules.json says, or else "
            "its architecture)",
            "TASK",
        ),
    ] = None
    ignore_config_keys: Annotated[
        KeyNames,
        Flag(
            FlagGroup.MODELS,
            "keys of config.json, generation_config.json and tokenizer_config.json that may stay "
            "unread although nothing here obeys them, such as one of training (default: none)",
        ),
    ] = ()
    load_format: Annotated[
        LoadFormat,
        Flag(
            FlagGroup.MODELS,
            "auto reads safetensors; dummy makes up weights for config.json, to measure speed "
            "(default: auto)",
            "FORMAT",
        ),
    ] = "auto"
    device: Annotated[
        DeviceName,
        Flag(
            FlagGroup.ENGINES,
            "cpu, cuda, or cuda:N for the first stage, with the next devices for the others "
            "(default: auto, CUDA if there is a device)",
        ),
    ] = "auto"
    dtype: Annotated[
        Dtype | Literal["auto"],
        Flag(
            FlagGroup.ENGINES,
            "of weights and activations: float32, bfloat16 or float16 (default: auto, float32 on "
            "a CPU, the checkpoint's half precision on CUDA)",
            "DTYPE",
        ),
    ] = "auto"
    pipeline_stages: Annotated[
        Positive,
        Flag(
            FlagGroup.ENGINES,
            "processes that each compute a part of the layers, on CUDA each on its own GPU",
        ),
    ] = defaults.PIPELINE_STAGES
    stage_layers: Annotated[
        StageLayers,
        Flag(
            FlagGroup.ENGINES,
            "how many layers each stage computes, such as 9,8,8,7 (default: so that the slowest "
            "stage takes the least time, as measured at start)",
        ),
    ] = ()
    steps_ahead: Annotated[
        ZeroOrOne,
        Flag(
            FlagGroup.ENGINES,
            "1 submits the next step of the oldest requests before the tokens of their last one "
            "are known; 0 waits for them (synchronous scheduling), and costs speed",
        ),
    ] = 1
    transport: Annotated[
        TransportName,
        Flag(
            FlagGroup.ENGINES,
            "how a stage gives activations to the next: gloo between CPUs; between GPUs "
            "peer-memory, which copies them into the other GPU's memory, or nccl (default: auto, "
            "on GPUs peer-memory where they reach each other's memory)",
            "NAME",
        ),
    ] = "auto"
    threads: Annotated[
        Positive | None,
        Flag(
            FlagGroup.ENGINES,
            "CPU threads of each stage (default: on a CPU, the cores divided by the stages)",
        ),
    ] = None
    attention_backend: Annotated[
        AttentionBackendName,
        Flag(
            FlagGroup.ENGINES,
            f"one of {', '.join(AttentionBackendName)}; naive is slow and simple, for "
            "comparison (default: auto, the fastest that works)",
            "NAME",
        ),
    ] = AttentionBackendName.AUTO
    disable_cascade_attn: Annotated[
        bool,
        Flag(
            FlagGroup.ENGINES,
            "attend to the whole context row by row, even where rows share a prefix (default: "
            "prefixes are attended once for all rows that share them, where that is faster)",
        ),
    ] = False
    max_running: Annotated[
        Positive | None,
        Flag(
            FlagGroup.CAPACITY,
            "sequences that generate at once "
            f"(default: {defaults.max_running(on_cpu=True)} on a CPU, on CUDA "
            f"{defaults.max_running(on_cpu=False)} times --pipeline-stages)",
        ),
    ] = None
    max_step_tokens: Annotated[
        Positive | None,
        Flag(
            FlagGroup.CAPACITY,
            "most tokens of one step "
            f"(default: {defaults.max_step_tokens(cached=True, on_cpu=True)} for a decoder and "
            f"{defaults.max_step_tokens(cached=False, on_cpu=True)} for an encoder on a CPU, "
            f"{defaults.max_step_tokens(cached=True, on_cpu=False)} and "
            f"{defaults.max_step_tokens(cached=False, on_cpu=False)} on CUDA)",
            "TOKENS",
        ),
    ] = None
    kv_cache_memory: Annotated[
        Bytes | None,
        Flag(
            FlagGroup.CAPACITY,
            "size of each stage's key-value cache, such as 2GiB (default: on a CPU what "
            f"--max-running needs, at most {defaults.CPU_KV_CACHE_BYTES >> 30}GiB; on CUDA what "
            "weights and the largest step leave of --memory-share)",
        ),
    ] = None
    block_size: Annotated[
        Positive | None,
        Flag(
            FlagGroup.CAPACITY,
            "tokens in a block, the unit in which the cache is allocated and shared "
            f"(default: {defaults.block_size(on_cpu=True)} on a CPU; on CUDA "
            f"{defaults.block_size(on_cpu=False)} for a generator and "
            f"{defaults.block_size(generates=False, on_cpu=False)} for others)",
            "TOKENS",
        ),
    ] = None


class ModelSettings(EngineSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model: a folder or a hub id, and its names in requests (by default its own name).

    Keys without a flag: `memory_share` is this engine's part of each of its CUDA devices;
    `max_queue_seconds` replaces the daemon's; `rerank` is the template of a causal model that
    reranks.
    """

    model: Text
    names: Annotated[
        Names,
        Flag(
            FlagGroup.MODELS,
            "the model's name in requests, or several names with commas; answers have the first. "
            "Once for each MODEL, in the same order (default: the folder's name, or the hub id)",
        ),
    ] = ()
    memory_share: Share | None = None
    max_queue_seconds: Seconds | None = None
    rerank: RerankTemplate | None = None
