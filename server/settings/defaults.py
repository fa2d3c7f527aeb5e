"""The default of every setting with a number: the one table that flags, `--help` and the set-up of
models read. Defaults that depend on the device or the task are functions."""

from workers.contract.config import Dtype, Task

HOST = "127.0.0.1"
PORT = 8000
API_WORKERS = 1

MAX_REQUESTS = 4096
MAX_SEQUENCES = 16_384
MAX_QUEUE_SECONDS = 30.0
MAX_BODY_BYTES = 8 << 20
MAX_INPUTS = 2048
MAX_DOCUMENTS = 1000
MAX_N = 128

MEMORY_SHARE = 0.9
PIPELINE_STAGES = 1

STARTUP_TIMEOUT = 600.0
DRAIN_TIMEOUT = 30.0
STALL_TIMEOUT = 60.0
LOG_LEVEL = "info"

CPU_KV_CACHE_BYTES = 1 << 30
"""On a CPU the KV cache holds `max_running` sequences of `max_model_len` tokens, within this."""


def max_running(*, on_cpu: bool) -> int:
    """Sequences that generate at once."""
    return 64 if on_cpu else 1024


def block_size(*, on_cpu: bool) -> int:
    """Tokens in a block of the KV cache."""
    return 16 if on_cpu else 128


def max_step_tokens(task: Task, *, on_cpu: bool) -> int:
    """A step's tokens: enough to keep the device busy, few enough to keep decoding smooth.

    8,448 are 66 tiles of 128. Where a layer's outputs make an even number of tiles, as they mostly
    do, all of them spread evenly over the 132 processors of an H100 or H200.
    """
    if on_cpu:
        return 512 if task == "generate" else 2048
    return 8448 if task == "generate" else 16_384


def threads(cores: int, stages: int, *, on_cpu: bool) -> int:
    """CPU threads of each stage."""
    return max(1, cores // stages) if on_cpu else 1


def dtype(checkpoint_dtype: str, *, on_cpu: bool) -> Dtype:
    """float32 on a CPU; on CUDA the checkpoint's half precision, or bfloat16."""
    if on_cpu:
        return "float32"
    return "float16" if checkpoint_dtype == "float16" else "bfloat16"
