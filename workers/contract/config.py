"""The frozen configuration of one worker process, written by the supervisor as JSON.

`ExecutionConfig` is also part of the engine core's (`engine_core.config`): both embed it, so that
neither can differ from the other.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from workers.contract.attention_backends import AttentionBackendName
from workers.contract.cache_layout import CacheLayout
from workers.contract.curve import ClusterKeys
from workers.contract.model_config import ModelConfig
from workers.contract.quantization import FP8_DEVICES

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "float16"]
CacheDtype = Dtype | Literal["fp8_e4m3"]
KVCacheDtype = Literal["auto", "fp8", "fp8_e4m3", "float32", "bfloat16", "float16"]
"""The values of the setting `kv_cache_dtype`."""
LoadFormat = Literal["auto", "dummy"]
Task = Literal[
    "generate", "embed", "embed_sparse", "embed_tokens", "classify", "classify_tokens", "rerank"
]
AskedTask = Literal["generate", "embed", "rerank"]
"""Tasks that a person may ask a checkpoint to do."""
TransportName = Literal["auto", "gloo", "peer-memory", "nccl"]

ITEM_BYTES: dict[CacheDtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8_e4m3": 1}
"""Bytes of one element."""

FP8_SCALE_BYTES = 4
"""Bytes of the scales of a token's key and value in one KV head (`attention/fp8_numbers.py`)."""

HOLDER_BYTES = 1 << 29
"""Bytes of a GPU that a holder takes beside the weights: its CUDA context."""


def engine_name(model: str, copy: int | None) -> str:
    """The name of a model's engine in messages: the model's own, if that has no other."""
    return model if copy is None else f"copy {copy} of {model}"


def copy_suffix(copy: int | None) -> str:
    """The end of the prefix of an engine's files and sockets, by which it differs from others."""
    return f"-{copy}" if copy else ""


class ExecutionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How one model is computed: the same for its engine core and for each of its workers.

    max_model_len         the most tokens of a sequence
    max_running           sequences that generate at once
    max_step_tokens       the most tokens of one step
    max_step_rows         the most texts of one step of an encoder, if that is bounded
    name                  the model's name in requests
    copy                  the number of this engine among several of the model, from 0
    devices               one a pipeline stage: all are `cpu`, or each is a `cuda:N` of its host
    nodes                 the host of each stage, in rising order from 0; empty with one host
    cluster_keys          of the sockets between hosts, if there are several
    stage_layers          layers of each stage; empty where that is decided by measurement
    steps_ahead           steps that may be in flight beside one a micro-batch
    disable_cascade_attn  each row attends to all of its context, even where rows share a prefix
    max_priority_wait     seconds after which a waiting row begins before every priority
    threads               CPU threads of each stage
    cores                 of this host, to which its stages are bound; empty where they are not
    block_size            tokens in a block of the KV cache
    kv_cache_dtype        of cached keys and values; `auto` is `dtype`
    kv_cache_bytes        the size of each stage's cache, unless there are `memory_shares`
    memory_shares         bytes of its device for each stage; its cache takes what the weights and
                          the largest step leave of them
    worker_endpoint       the socket between the engine core and its workers
    token_endpoint        the socket on which the first stage takes sampled tokens from the last
    keeps_weights         each stage has a holder of its weights (`workers/weights/holder.py`)
    start                 a name that no other start of the daemon has, and with which those of
                          its holders' sockets begin
    restarts              how many times its processes, or its stages alone, were started before
    choices_folder        a folder for what is chosen by measuring (`workers/device/choices.py`), on
                          each host; "" where each process measures for itself
    setting_names         names of settings in messages, by key: how a person has set them
                          (`--max-running`, `models[0].max_running of penstock.yaml`)
    """

    max_model_len: int
    max_running: int
    max_step_tokens: int
    max_step_rows: int | None = None
    name: str
    copy: int | None = None
    model: ModelConfig
    task: Task
    devices: tuple[str, ...]
    nodes: tuple[int, ...] = ()
    cluster_keys: ClusterKeys | None = None
    stage_layers: tuple[int, ...]
    steps_ahead: int
    transport: TransportName
    dtype: Dtype
    load_format: LoadFormat
    attention_backend: AttentionBackendName
    disable_cascade_attn: bool = False
    max_priority_wait: float = 10.0
    threads: int
    cores: tuple[int, ...] = ()
    block_size: int
    kv_cache_dtype: Literal["auto", "fp8_e4m3"] = "auto"
    kv_cache_bytes: int
    memory_shares: tuple[int, ...] = ()
    worker_endpoint: str
    token_endpoint: str
    keeps_weights: bool = False
    start: str
    restarts: int = 0
    choices_folder: str = ""
    log_level: str = "info"
    setting_names: dict[str, str] = {}

    @property
    def engine_name(self) -> str:
        return engine_name(self.name, self.copy)

    def setting(self, key: str) -> str:
        return self.setting_names.get(key, key)

    def restarted(self, restarts: str = "0") -> "ExecutionConfig":
        """A copy with its `restarts`, as a process's command line has them."""
        return msgspec.structs.replace(self, restarts=int(restarts))

    @property
    def fp8_item_bytes(self) -> int:
        """Bytes of a weight in FP8 on the model's devices, once it is loaded."""
        return 1 if self.device_type in FP8_DEVICES else ITEM_BYTES[self.dtype]

    @property
    def shape(self) -> tuple[object, ...]:
        """All that decides how long the parts of a model take on a device."""
        model = msgspec.structs.replace(self.model, path="")
        lengths = self.max_model_len, self.max_running, self.max_step_tokens, self.block_size
        dtypes = self.dtype, self.cache_dtype
        return model, self.task, dtypes, lengths, self.num_stages, self.threads

    @property
    def weights_in_fp8(self) -> bool:
        """Whether layers have weights in FP8, whatever the devices make of them."""
        own = self.model.quantization
        return own is not None and own.of_weights and not own.in_fp4

    @property
    def cache_dtype(self) -> CacheDtype:
        """The dtype of cached keys and values."""
        without = self.kv_cache_dtype == "auto" or not self.model.has_kv_cache
        return self.dtype if without else "fp8_e4m3"

    def kv_token_bytes(self, layers: Iterable[int]) -> int:
        """Bytes of one token's keys and values in these layers. 0 without a KV cache."""
        model, dtype = self.model, self.cache_dtype
        scales = FP8_SCALE_BYTES if dtype == "fp8_e4m3" else 0
        keeping = [i for i in layers if model.has_kv_cache and model.kv_layer(i) == i]
        return sum(
            kv_heads * (2 * head_dim * ITEM_BYTES[dtype] + scales)
            for _, kv_heads, head_dim in map(model.heads_of, keeping)
        )

    @property
    def cache_layout(self) -> CacheLayout:
        """How a causal model's layers share the blocks of the KV cache."""
        lengths = self.max_model_len, self.max_step_tokens
        return CacheLayout.of(self.model, self.block_size, *lengths)

    def kv_block_bytes(self, layers: range) -> int:
        """Bytes of a block of KV cache on the stage that holds these layers. 0 without one."""
        if not self.model.has_kv_cache:
            return 0
        return self.cache_layout.block_planes(layers) * self.kv_plane_bytes

    @property
    def kv_plane_bytes(self) -> int:
        """Bytes of a plane of a block of KV cache. In FP8 each shape of keys has its own scales."""
        layout, dtype = self.cache_layout, self.cache_dtype
        token = 2 * layout.plane_numbers * ITEM_BYTES[dtype]
        if dtype == "fp8_e4m3":
            shapes = {(group.a_plane, group.kv_heads) for group in layout.groups}
            token += FP8_SCALE_BYTES * sum(parts * kv_heads for parts, kv_heads in shapes)
        return self.block_size * token

    @property
    def scores_pairs(self) -> bool:
        """Whether a query and a text are scored together."""
        return self.task in ("classify", "rerank") and self.model.reads_pairs

    @property
    def scores_relevance(self) -> bool:
        """Whether a score is the relevance of a text to a query. A classifier's is if it has a
        single label and reads pairs."""
        return self.task != "classify" or (self.scores_pairs and self.model.num_labels == 1)

    @property
    def num_stages(self) -> int:
        return len(self.devices)

    @property
    def max_depth(self) -> int:
        """The most steps that may ever be in flight, for which buffers are sized."""
        return max_micro_batches(self.num_stages) + self.steps_ahead

    @property
    def largest_step_tokens(self) -> int:
        """Tokens of the largest step. Without a KV cache a text is computed in one step, of
        whatever length."""
        if self.model.has_kv_cache:
            return self.max_step_tokens
        late = self.model.late_interaction
        longest = 0 if late is None else max(self.max_model_len + 1, late.query_length)
        return max(self.max_step_tokens, self.max_model_len, longest)

    def activation_bytes(self, stage: int) -> int:
        """The most bytes in which a stage receives activations, in slots of [largest_step_tokens,
        state_size].

        Stages of one host have a ring each, with a slot for each step in flight, unless NCCL is
        asked for. A stage that receives by NCCL has one slot.
        """
        beside = self.stages_of(self.node_of(stage))
        ring = len(beside) > 1 and self.transport != "nccl"
        by_nccl = stage > 0 and (self.transport == "nccl" or stage - 1 not in beside)
        slots = ring * self.max_depth + by_nccl
        return slots * self.largest_step_tokens * self.model.state_size * ITEM_BYTES[self.dtype]

    @property
    def device_type(self) -> Device:
        return "cpu" if self.devices[0] == "cpu" else "cuda"

    def node_of(self, stage: int) -> int:
        return self.nodes[stage] if self.nodes else 0

    def stages_of(self, node: int) -> tuple[int, ...]:
        """The stages on one host, which follow each other."""
        return tuple(stage for stage in range(self.num_stages) if self.node_of(stage) == node)


def max_micro_batches(num_stages: int) -> int:
    """The most micro-batches that a pipeline of P stages is given: P + 2, and one stage has one."""
    return num_stages + 2 if num_stages > 1 else 1


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Stage number `stage` (from 0) of a model."""

    execution: ExecutionConfig
    stage: int

    @property
    def node(self) -> int:
        return self.execution.node_of(self.stage)

    @property
    def beside(self) -> tuple[int, ...]:
        """The stages of this host, this one among them."""
        return self.execution.stages_of(self.node)

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs of this host that each of its workers sees, so as to reach its neighbours'
        memory. The first is its `cuda:0`."""
        devices = [self.execution.devices[stage] for stage in self.beside]
        return () if devices[0] == "cpu" else tuple(dict.fromkeys(devices))

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
        return f"cuda:{self.gpus.index(execution.devices[self.stage])}"
