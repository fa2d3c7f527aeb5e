"""Agreements with the stages while they start: their layers, and the blocks of KV cache."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine_core.executor.partition import stage_shares
from workers.contract.config import ExecutionConfig
from workers.contract.messages import (
    AllocateKV,
    ToWorker,
    WorkerConnected,
    WorkerLoaded,
    WorkerReady,
)
from workers.contract.share import Share

log = logging.getLogger(__name__)


class WorkerLostError(Exception):
    """A stage has failed or its process is gone, so nothing more can be computed."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """All stages together: weights in bytes, blocks of KV cache (0 for an encoder). How long they
    took to start."""

    weight_bytes: int
    num_blocks: int
    start_seconds: float = field(default=0.0, compare=False)


StartMessage = WorkerConnected | WorkerLoaded | WorkerReady


class StageStart:
    """Starts of all stages, message by message.

    What the first one decides holds for all: requests have been admitted by that capacity, and
    texts computed by those shares.
    """

    def __init__(
        self, execution: ExecutionConfig, send: Callable[[ToWorker, Sequence[int]], None]
    ) -> None:
        """`send` hands a message to stages."""
        self._execution, self._send = execution, send
        self._stages = range(execution.num_stages)
        self._shares: list[Share] = []
        self._capacity: Capacity | None = None
        self.begin_again()

    def begin_again(self) -> None:
        self._connected: list[WorkerConnected] = []
        self._loaded: list[WorkerLoaded] = []
        self._ready = 0

    @property
    def is_over(self) -> bool:
        """Whether all stages are ready."""
        return self._ready >= len(self._stages)

    @property
    def capacity(self) -> Capacity:
        """The stages' capacity, once a start is over."""
        assert self._capacity is not None, "no stage has loaded yet"
        return self._capacity

    def take(self, message: StartMessage) -> None:
        """Go on once every stage has said the same. Raises ModelConfigError, and WorkerLostError if
        no block of KV cache fits."""
        match message:
            case WorkerConnected():
                self._connected.append(message)
                if len(self._connected) == len(self._stages):
                    self._divide()
            case WorkerLoaded():
                self._loaded.append(message)
                if len(self._loaded) == len(self._stages):
                    self._allocate()
            case WorkerReady():
                self._ready += 1

    def _divide(self) -> None:
        """Give each stage its layers."""
        self._shares = self._shares or stage_shares(self._execution, self._connected)
        for stage, share in zip(self._stages, self._shares, strict=True):
            self._send(share, [stage])

    def _allocate(self) -> None:
        """Size the KV cache by what the stages have loaded."""
        weight_bytes = sum(stage.weight_bytes for stage in self._loaded)
        seconds = max(stage.seconds for stage in self._loaded)
        log.info("weights: %s bytes in %.1f s", f"{weight_bytes:,}", seconds)
        if self._capacity is None:
            self._capacity = Capacity(weight_bytes, _kv_blocks(self._execution, self._loaded))
        self._send(AllocateKV(self._capacity.num_blocks), self._stages)


def _kv_blocks(execution: ExecutionConfig, loaded: Sequence[WorkerLoaded]) -> int:
    """Blocks of KV cache that the tightest stage holds, up to what could ever be used.

    An encoder has none. A stage's budget is configured, or measured (`workers/stage/kv_budget.py`).
    Raises WorkerLostError where no block fits.
    """
    stages = [stage for stage in loaded if stage.kv_block_bytes]
    if not stages:
        return 0
    longest = execution.max_model_len
    layout = execution.cache_layout
    tightest = min(stages, key=lambda stage: stage.kv_budget_bytes // stage.kv_block_bytes)
    blocks = tightest.kv_budget_bytes // tightest.kv_block_bytes
    if blocks < 1:
        raise WorkerLostError(
            f"the KV cache of {tightest.kv_budget_bytes:,} bytes does not hold one block of "
            f"{tightest.kv_block_bytes:,}: raise {execution.setting('kv_cache_memory')}"
        )
    if (held := layout.longest(blocks)) < longest:
        log.warning(
            "the KV cache of %s bytes holds a sequence of %s tokens, fewer than the model's "
            "context length of %s: longer requests are refused (%s: %s bytes hold one)",
            f"{tightest.kv_budget_bytes:,}",
            f"{held:,}",
            f"{longest:,}",
            execution.setting("kv_cache_memory"),
            f"{layout.blocks_alone(layout.max_blocks) * tightest.kv_block_bytes:,}",
        )
    return min(blocks, layout.usable(execution.max_running))
