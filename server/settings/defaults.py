"""Defaults that several settings have, or that depend on the device or the model.

For the latter `server.settings.settings` declares None, and `server.models.model_setup` calls a
function here.
"""

from workers.contract.config import Dtype

MAX_PENDING_TOKENS = 16 << 20
"""Tokens in flight in the whole daemon. No flag sets it."""

MEMORY_SHARE = 0.9
PIPELINE_STAGES = DATA_PARALLEL_SIZE = 1

STARTUP_TIMEOUT = 600.0
STALL_TIMEOUT = 60.0
MAX_RESTARTS = 3
LOG_LEVEL = "info"

CPU_KV_CACHE_BYTES = 1 << 30
"""Most bytes of a stage's KV cache on a CPU. It is smaller if that holds `max_running` sequences of
`max_model_len` tokens."""


def max_running(stages: int = 1, *, on_cpu: bool) -> int:
    """`--max-running`. On GPUs each stage brings its memory, and a step of its own."""
    return 64 if on_cpu else 1024 * stages


def block_size(*, generates: bool = True, on_cpu: bool) -> int:
    """`--block-size`. Rerankers and embedders have short prompts: a template and a query of 100
    tokens would share no block of 128."""
    if on_cpu:
        return 16
    return 128 if generates else 32


def max_step_tokens(*, cached: bool, on_cpu: bool) -> int:
    """`--max-step-tokens`, with a KV cache (`cached`) or without: enough to keep the device busy,
    few enough to keep decoding smooth.

    8,448 are 66 tiles of 128. Times an even number of tiles of a layer's outputs, as is usual, they
    spread evenly over the 132 processors of an H100 or H200.
    """
    if on_cpu:
        return 512 if cached else 2048
    return 8448 if cached else 16_384


def threads(cores: int, stages: int, *, on_cpu: bool) -> int:
    """`--threads`, of each stage."""
    return max(1, cores // stages) if on_cpu else 1


def dtype(checkpoint_dtype: str, *, on_cpu: bool) -> Dtype:
    """`--dtype auto`: float32 on a CPU. On CUDA the checkpoint's half precision, or bfloat16."""
    if on_cpu:
        return "float32"
    return "float16" if checkpoint_dtype == "float16" else "bfloat16"
