"""What sizes the KV cache: blocks from the stages' budgets.

A stage's budget is `kv_cache_bytes` of its configuration (`server/models/model_setup.py` decides
it), or what is left of its share of the GPU (`workers/stage/decode_runner.py` measures it).
"""

import logging
from collections.abc import Sequence

from engine_core.executor.base import WorkerLostError
from workers.contract.config import ExecutionConfig
from workers.contract.messages import WorkerLoaded

_log = logging.getLogger(__name__)


def kv_blocks(execution: ExecutionConfig, loaded: Sequence[WorkerLoaded]) -> int:
    """As many blocks as the tightest stage can hold, and no more than could ever be used; 0 for an
    encoder. Raises WorkerLostError where not even one fits."""
    stages = [stage for stage in loaded if stage.kv_block_bytes]
    if not stages:
        return 0
    size, longest = execution.block_size, execution.max_model_len
    tightest = min(stages, key=_blocks_that_fit)
    blocks = _blocks_that_fit(tightest)
    if blocks < 1:
        raise WorkerLostError(
            f"the KV cache of {tightest.kv_budget_bytes:,} bytes does not hold one block of "
            f"{tightest.kv_block_bytes:,}: raise {execution.setting('kv_cache_memory')}"
        )
    if blocks * size < longest:
        _log.warning(
            "the KV cache of %s bytes holds %s tokens, fewer than the model's context length "
            "of %s: longer requests are refused (%s: %s bytes hold one)",
            f"{tightest.kv_budget_bytes:,}",
            f"{blocks * size:,}",
            f"{longest:,}",
            execution.setting("kv_cache_memory"),
            f"{-(-longest // size) * tightest.kv_block_bytes:,}",
        )
    return min(blocks, execution.max_running * -(-longest // size))


def _blocks_that_fit(stage: WorkerLoaded) -> int:
    return stage.kv_budget_bytes // stage.kv_block_bytes
