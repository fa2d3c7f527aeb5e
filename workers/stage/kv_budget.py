"""What sizes the KV cache: each stage has a budget of bytes, and the smallest decides.

The budget of a stage is:
- with the setting `kv_cache_memory`, that size;
- on a CPU, room for `max_running` sequences of full length, up to 1 GiB
  (`server/models/model_setup.py`);
- on CUDA, the engine's share of the device (`server/models/served_models.py`) less all other uses,
  which this file measures.

The worker reports its budget, and `engine_core/executor/capacity.py` turns the budgets of all
stages into a number of blocks.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from workers.attention.base import AttentionBackend
from workers.contract.config import ExecutionConfig, WorkerConfig
from workers.contract.messages import DecodeStep
from workers.contract.token_sampling import TokenSampling
from workers.device.tuning import OUTSIDE_ALLOCATOR_BYTES
from workers.stage.decode_runner import DecodeRunner
from workers.stage.memory import GIB, DeviceMemoryError, explained
from workers.stage.warm_up_steps import blocks_of, step_of_rows
from workers.weights.loader import LoadedModel


def measured_kv_budget(
    worker: WorkerConfig, loaded: LoadedModel, backends: Sequence[AttentionBackend], ring: int
) -> int:
    """Bytes for the KV cache: the stage's share of its device, less its weights and tables, the
    peak of its largest step beside them, its CUDA graphs, and the ring in which it receives hidden
    states. The step is run and the graphs are captured to measure them, with a cache that holds
    only that step's tokens; the `ring` bytes are those that torch's allocator does not count.

    Raises DeviceMemoryError where nothing is left.
    """
    config = worker.execution
    runner = DecodeRunner(worker, loaded, backends, blocks_of_largest_step(config))
    tokens, rows = config.setting("max_step_tokens"), config.setting("max_running")
    share = config.setting("memory_share")
    with explained("measuring the largest step", f"lower {tokens} or {rows}"):
        allocated = torch.cuda.memory_allocated()
        held = allocated - runner.kv_cache.nbytes
        torch.cuda.reset_peak_memory_stats()
        runner.run_alone(largest_step(config))
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
    """As many rows and tokens as a step may have, every row sampled with truncation and penalties,
    which take the most memory."""
    lens = _row_lens_of_largest_step(config)
    costly = TokenSampling(top_p=0.9, presence_penalty=0.1)
    return step_of_rows(lens, np.zeros_like(lens), config.block_size, costly)


def blocks_of_largest_step(config: ExecutionConfig) -> int:
    """Blocks that `largest_step` writes."""
    return int(blocks_of(_row_lens_of_largest_step(config), config.block_size).sum())


def _row_lens_of_largest_step(config: ExecutionConfig) -> npt.NDArray[np.int32]:
    """Tokens of each row of the largest step: all the same, or one more in the first rows."""
    rows = min(config.max_running, config.max_step_tokens)
    each, over = divmod(min(config.max_step_tokens, rows * config.max_model_len), rows)
    lens = np.full(rows, each, np.int32)
    lens[:over] += 1
    return lens


def _graph_bytes(runner: DecodeRunner) -> int:
    """What all CUDA graphs will take.

    All share the memory of the largest, so that each further one adds little. Measured are the
    largest graph of each kind, then the two largest of each kind. The second capture has two graphs
    more, one of rows and one of tokens: each further graph is taken to add half of the difference.
    """
    if not runner.can_capture():
        return 0
    rows, tokens = runner.graph_sizes()
    used: list[int] = []
    for captured in (1, 2):
        before = torch.cuda.mem_get_info()[0]
        runner.capture(rows[-captured:], tokens[-captured:])
        used.append(before - torch.cuda.mem_get_info()[0])
    further = sum(len(sizes) - 1 for sizes in (rows, tokens) if sizes)
    return used[0] + further * max(used[1] - used[0], 0) // 2
