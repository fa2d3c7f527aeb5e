"""Step tensors made directly, one row at a time, and all stages of a model run in one process."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from tests.workers.checkpoints import load_share, worker_config
from workers.attention.backend_selection import select_backends
from workers.attention.kv_cache import KVCache
from workers.attention.stage_attention import StageAttention
from workers.contract.config import Dtype, Task
from workers.layers.layer import Placement
from workers.models.base import StageModel, forward
from workers.stage.model_runner import attention_needs, stage_attention
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

MIN_ROWS = 4


class PagedRow(NamedTuple):
    """Tokens of one row in a step, behind `start` that are cached, in the blocks of `table`."""

    tokens: list[int]
    start: int
    table: list[int]


def paged_step(rows: Sequence[PagedRow], block_size: int) -> PagedStep:
    """A decoder's step, padded to MIN_ROWS tokens."""
    width = max(-(-(row.start + len(row.tokens)) // block_size) for row in rows)
    tables = [(row.table + [0] * width)[:width] for row in rows]
    places = [range(row.start, row.start + len(row.tokens)) for row in rows]
    lens = [len(row.tokens) for row in rows]
    contexts = [place.stop for place in places]
    return PagedStep(
        tokens=_padded([row.tokens for row in rows]),
        positions=_padded([list(place) for place in places]),
        kv_indices=torch.tensor(
            [
                row.table[place // block_size] * block_size + place % block_size
                for row, own in zip(rows, places, strict=True)
                for place in own
            ]
        ),
        # Slots in reverse: a backend that takes a row's number for its slot reads another's blocks.
        block_tables=torch.tensor(tables[::-1], dtype=torch.int32),
        slots=torch.arange(len(rows) - 1, -1, -1, dtype=torch.int32),
        query_starts=torch.tensor([0, *np.cumsum(lens)], dtype=torch.int32),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        query_lens=np.array(lens, np.int32),
        contexts=np.array(contexts, np.int32),
    )


def packed_step(texts: Sequence[list[int]], types: Sequence[list[int]] = ()) -> PackedStep:
    """An encoder's step of whole texts, padded to MIN_ROWS tokens."""
    lens = [len(text) for text in texts]
    return PackedStep(
        tokens=_padded(texts),
        positions=_padded([list(range(length)) for length in lens]),
        token_types=_padded(types) if types else None,
        query_starts=torch.tensor([0, *np.cumsum(lens)], dtype=torch.int32),
        row_lens=torch.tensor(lens, dtype=torch.int32),
        query_lens=np.array(lens, np.int32),
        unpooled_lens=None,
        state_indices=None,
    )


def _padded(rows: Sequence[list[int]]) -> torch.Tensor:
    flat = [number for row in rows for number in row]
    return torch.tensor(flat + [0] * (MIN_ROWS - len(flat)))


class Stages:
    """Every stage of a checkpoint, run one after another on each step.

    Sequences are told apart by any key; blocks are handed out in random order.
    """

    def __init__(
        self,
        folder: Path,
        *,
        task: Task = "generate",
        num_stages: int = 1,
        backend: str = "sdpa",
        dtype: Dtype = "float32",
    ) -> None:
        configs = [
            worker_config(folder, task=task, stage=stage, num_stages=num_stages, dtype=dtype)
            for stage in range(num_stages)
        ]
        model, self.block_size = configs[0].execution.model, configs[0].execution.block_size
        self.models = [load_share(config).model for config in configs]
        self._config = configs[0].execution
        self._backends = select_backends(backend, attention_needs(self._config))
        num_blocks = 128
        self._caches = [
            KVCache(
                model,
                len(stage_model.layers),
                num_blocks,
                self.block_size,
                getattr(torch, dtype),
                torch.device("cpu"),
            )
            for stage_model in self.models
        ]
        self._free = random.Random(3).sample(range(num_blocks), num_blocks)
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def take(self, work: Sequence[tuple[int, list[int]]]) -> PagedStep:
        """The step that appends tokens to each (sequence, tokens) of `work`."""
        rows: list[PagedRow] = []
        for key, tokens in work:
            start, table = self.lengths.get(key, 0), self.tables.setdefault(key, [])
            while len(table) * self.block_size < start + len(tokens):
                table.append(self._free.pop())
            self.lengths[key] = start + len(tokens)
            rows.append(PagedRow(tokens, start, table))
        return paged_step(rows, self.block_size)

    def run(self, step: PagedStep | PackedStep) -> list[torch.Tensor]:
        """Final hidden states of each row, [query_len, hidden_size]."""
        hidden = None
        with torch.inference_mode():
            for model, cache in zip(self.models, self._caches, strict=True):
                stage = self._attention(model, cache)
                hidden = forward(model, step, hidden, stage.over(step))
        assert hidden is not None
        return list(hidden[: step.num_tokens].split(step.query_lens.tolist()))

    def _attention(self, model: StageModel, cache: KVCache) -> StageAttention:
        config = self._config
        placement = Placement(torch.device("cpu"), getattr(torch, config.dtype))
        return stage_attention(config, model, self._backends, cache.layers, placement)

    def logits(self, step: PagedStep | PackedStep) -> list[torch.Tensor]:
        """Logits of each row's tokens, [query_len, vocab_size]."""
        with torch.inference_mode():
            return [self.models[-1].compute_logits(hidden) for hidden in self.run(step)]
