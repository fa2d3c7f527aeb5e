"""Measures on CUDA how large a stage's KV cache may be."""

from collections.abc import Sequence

import numpy as np
import torch

from workers.attention.base import AttentionBackend
from workers.contract.config import ExecutionConfig, WorkerConfig
from workers.contract.messages import DecodeStep
from workers.contract.token_sampling import TokenSampling
from workers.device.tuning import OUTSIDE_ALLOCATOR_BYTES
from workers.stage.decode_runner import DecodeRunner
from workers.stage.memory import GIB, DeviceMemoryError, explained
from workers.stage.model_runner import blocks_of, step_of_rows
from workers.weights.loader import LoadedModel


def measured_kv_budget(
    worker: WorkerConfig, loaded: LoadedModel, backends: Sequence[AttentionBackend], ring: int
) -> int:
    """Bytes for the KV cache on CUDA.

    They are the engine's share (`server/models/served_models.py`) less weights and tables, the peak
    of the largest step, CUDA graphs, and received hidden states.

    Step and graphs are measured with a cache for that step's tokens alone. `ring` is what torch's
    allocator does not count. The smallest budget of all stages decides
    (`engine_core/executor/stage_link.py`). Raises DeviceMemoryError where nothing is left.
    """
    config = worker.execution
    largest = largest_step(config)
    runner = DecodeRunner(worker, loaded, backends, blocks_of(largest))
    tokens, rows = config.setting("max_step_tokens"), config.setting("max_running")
    share = config.setting("memory_share")
    with explained("measuring the largest step", f"lower {tokens} or {rows}"):
        allocated = torch.cuda.memory_allocated()
        held = allocated - runner.kv_cache.nbytes + loaded.holder_bytes
        torch.cuda.reset_peak_memory_stats()
        runner.run_alone(largest)
        peak = torch.cuda.max_memory_allocated() - allocated
        graphs = _graph_bytes(runner)
    budget = worker.memory_share - held - peak - graphs - ring - OUTSIDE_ALLOCATOR_BYTES
    if budget <= 0:
        raise DeviceMemoryError(
            f"no room for a KV cache: the share of {worker.memory_share / GIB:.1f} GiB goes "
            f"to weights and tables ({held / GIB:.1f}), the largest step ({peak / GIB:.1f}), "
            f"CUDA graphs ({graphs / GIB:.1f}) and received states ({ring / GIB:.1f}); "
            f"raise {share}, or lower {tokens}, by at least {-budget / GIB:.1f} GiB"
        )
    return budget


def largest_step(config: ExecutionConfig) -> DecodeStep:
    """The step with the most rows and tokens, all sampled in the way that takes the most memory."""
    rows = min(config.max_running, config.max_step_tokens)
    each, over = divmod(min(config.max_step_tokens, rows * config.max_model_len), rows)
    lens = np.full(rows, each, np.int32)
    lens[:over] += 1
    costly = TokenSampling(top_p=0.9, presence_penalty=0.1)
    return step_of_rows(lens, np.zeros_like(lens), config.cache_layout, costly)


def _graph_bytes(runner: DecodeRunner) -> int:
    """Bytes that all CUDA graphs will take.

    All share the memory of the largest. That of each kind is measured, then the two largest, two
    graphs more: each further graph is taken to add half of the difference.
    """
    if not runner.can_capture():
        return 0
    used: list[int] = []
    for captured in (1, 2):
        before = torch.cuda.mem_get_info()[0]
        runner.capture(runner.graph_sizes(captured))
        used.append(before - torch.cuda.mem_get_info()[0])
    sizes = runner.graph_sizes()
    further = sum(len(sizes[kind]) - 1 for kind in ("decode", "piecewise") if sizes[kind])
    return used[0] + further * max(used[1] - used[0], 0) // 2
