"""The frozen configuration of one worker process, written by the supervisor as JSON.

`ExecutionConfig` is also part of the engine core's (`engine_core.config`): both embed it, so that
neither can differ from the other.
"""

from typing import Literal

import msgspec

from workers.contract.attention_backends import AttentionBackendName
from workers.contract.model_config import ModelConfig

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "float16"]
LoadFormat = Literal["auto", "dummy"]
Task = Literal["generate", "embed", "embed_sparse", "classify", "rerank"]
AskedTask = Literal["generate", "embed", "rerank"]
"""What a person may ask a checkpoint to do."""
TransportName = Literal["auto", "gloo", "peer-memory", "nccl"]

ITEM_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one element."""


class ExecutionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How one model is computed: the same for its engine core and for each of its workers.

    `name` is what requests call the model. `devices` has one entry a pipeline stage: all are `cpu`,
    or each is a `cuda:N`. `threads` are CPU threads of each stage.

    `max_model_len` is the most tokens of a sequence, `max_running` the number of sequences that
    generate at once, `max_step_tokens` the most tokens of one step.

    `stage_layers` is how many layers each stage gets; empty where that is decided by measurement.
    `steps_ahead` is how many steps more than there are micro-batches may be in flight.

    `disable_cascade_attn` is whether each row attends to the whole of its context by itself, even
    where rows share a prefix.

    What has waited `max_priority_wait` seconds begins before every priority.

    `block_size` is the number of tokens in a block of the KV cache. `kv_cache_bytes` is the size of
    each stage's cache, unless there are `memory_shares`, the bytes that each stage may take of its
    device: then the cache takes what the weights and the largest step leave of them.

    `worker_endpoint` is the socket on which the engine core talks to its workers; `token_endpoint`
    the one on which the first stage takes sampled tokens from the last; `rendezvous` a file in the
    daemon's private directory through which the stages' process groups find each other.

    `setting_names` are what messages call settings, by key: the server knows how a person sets
    them (`--max-running`, `models[0].max_running of penstock.yaml`).
    """

    max_model_len: int
    max_running: int
    max_step_tokens: int
    name: str
    model: ModelConfig
    task: Task
    devices: tuple[str, ...]
    stage_layers: tuple[int, ...]
    steps_ahead: int
    transport: TransportName
    dtype: Dtype
    load_format: LoadFormat
    attention_backend: AttentionBackendName
    disable_cascade_attn: bool = False
    max_priority_wait: float = 10.0
    threads: int
    block_size: int
    kv_cache_bytes: int
    memory_shares: tuple[int, ...] = ()
    worker_endpoint: str
    token_endpoint: str
    rendezvous: str
    log_level: str = "info"
    setting_names: dict[str, str] = {}

    def setting(self, key: str) -> str:
        """The name in messages of a setting that a person should change."""
        return self.setting_names.get(key, key)

    @property
    def scores_pairs(self) -> bool:
        """Whether a query and a text are scored together."""
        return self.task in ("classify", "rerank") and self.model.reads_pairs

    @property
    def scores_relevance(self) -> bool:
        """Whether a score is the relevance of a text to a query. A classifier's is if it has a
        single label, and if it scores pairs at all."""
        return self.task != "classify" or (self.scores_pairs and self.model.num_labels == 1)

    @property
    def num_stages(self) -> int:
        """P"""
        return len(self.devices)

    @property
    def max_depth(self) -> int:
        """The most steps that may ever be in flight: what buffers are sized for."""
        return max_micro_batches(self.num_stages) + self.steps_ahead

    @property
    def largest_step_tokens(self) -> int:
        """Tokens of the largest step. Without a KV cache a text is computed in one step, however
        long it is."""
        if self.model.has_kv_cache:
            return self.max_step_tokens
        return max(self.max_step_tokens, self.max_model_len)

    @property
    def activation_ring_bytes(self) -> int:
        """Bytes in which a stage receives activations, at most: `max_depth` slots, one a step in
        flight, of [largest_step_tokens, hidden_size]. One slot where NCCL is asked for. The only
        stage of a model has none."""
        if self.num_stages == 1:
            return 0
        row = self.model.hidden_size * ITEM_BYTES[self.dtype]
        slots = 1 if self.transport == "nccl" else self.max_depth
        return slots * self.largest_step_tokens * row

    @property
    def device_type(self) -> Device:
        """The type of every stage's device."""
        return "cpu" if self.devices[0] == "cpu" else "cuda"

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that every worker of this model sees, in this order: `cuda:0` of a worker is the
        first. A worker that saw its own alone could not reach its neighbours' memory."""
        return () if self.device_type == "cpu" else tuple(dict.fromkeys(self.devices))


def max_micro_batches(num_stages: int) -> int:
    """The most micro-batches that a pipeline of P stages is given: P + 2, and one stage has one."""
    return num_stages + 2 if num_stages > 1 else 1


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Stage number `stage` (from 0) of a model."""

    execution: ExecutionConfig
    stage: int

    @property
    def memory_share(self) -> int:
        """Bytes that the stage may take of its device. 0 where `kv_cache_bytes` is to be kept."""
        shares = self.execution.memory_shares
        return shares[self.stage] if shares else 0

    @property
    def local_device(self) -> str:
        """The stage's device, by the number that it has in this process."""
        execution = self.execution
        if execution.device_type == "cpu":
            return "cpu"
        return f"cuda:{execution.gpus.index(execution.devices[self.stage])}"
