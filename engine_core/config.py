"""The frozen configuration of one engine core, written by the supervisor as JSON."""

import msgspec

from workers.contract.config import Dtype, LoadFormat, Task
from workers.contract.model_config import ModelConfig


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One served model: its shape, how it runs, how much of it may be in the house.

    `name` is what requests call it. `max_step_tokens` bounds one micro-batch; `max_pending_*`
    bound what is accepted and not finished: rows, and tokens (text counts its bytes until it is
    tokenized). `max_queue_seconds` bounds the expected wait until a job's first row begins; 0 is no
    bound. A worker stands still if a step takes longer than `stall_timeout` seconds; with 0 the
    workers are not watched. `client_endpoint` and `worker_endpoint` are the core's two sockets.
    """

    name: str
    model: ModelConfig
    task: Task
    device: str
    dtype: Dtype
    load_format: LoadFormat
    attention_backend: str
    num_stages: int
    threads: int
    max_model_len: int
    max_running: int
    max_step_tokens: int
    block_size: int
    kv_cache_bytes: int
    memory_share_bytes: int = 0
    max_pending_rows: int
    max_pending_tokens: int
    max_queue_seconds: float = 30.0
    client_endpoint: str
    worker_endpoint: str
    token_endpoint: str
    rendezvous: str
    stall_timeout: float = 60.0
    log_level: str = "info"

    @property
    def depth(self) -> int:
        """Steps in flight: one for each stage, and the next step of the oldest."""
        return self.num_stages + 1
