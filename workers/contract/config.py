"""The frozen configuration of one worker process, written by the supervisor as JSON."""

from typing import Literal

import msgspec

from workers.contract.model_config import ModelConfig

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "dummy"]
Task = Literal["generate", "embed", "embed_sparse", "classify"]


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one model, whose `name` is for the log.

    With `device` "cuda" the stage runs on the only GPU that its process sees: whatever a thread or
    a library does without naming a device, it does there.

    `kv_cache_bytes` is the size of the KV cache, unless `memory_share_bytes` is above 0: then the
    cache takes what the weights and the largest step leave of that share of the device.

    `endpoint` is the engine core's worker socket; `token_endpoint` the socket on which the first
    stage takes sampled tokens from the last; `rendezvous` a file in the daemon's private directory
    through which the stages' process groups find each other. `depth` is the number of steps that
    may be in flight at once (num_stages + 1).
    """

    name: str
    model: ModelConfig
    task: Task
    stage: int
    num_stages: int
    device: Device
    dtype: Dtype
    load_format: LoadFormat
    attention_backend: str
    threads: int
    depth: int
    max_slots: int
    max_model_len: int
    max_step_tokens: int
    block_size: int
    kv_cache_bytes: int
    memory_share_bytes: int = 0
    endpoint: str
    token_endpoint: str
    rendezvous: str
    log_level: str = "info"
