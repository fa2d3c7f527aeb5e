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
from workers.contract.config import Dtype, Task, WorkerConfig
from workers.layers.layer import Placement
from workers.models.base import forward
from workers.stage.model_runner import attention_needs, stage_attention
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

MIN_ROWS = 4
_NUM_BLOCKS = 128


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
        whole = worker_config(folder, task=task, num_stages=num_stages, dtype=dtype)
        config = whole.execution
        stages = [WorkerConfig(execution=config, stage=stage) for stage in range(num_stages)]
        self.models = [load_share(stage).model for stage in stages]
        self.block_size = config.block_size
        placement = Placement(torch.device("cpu"), getattr(torch, dtype))
        sizes = (_NUM_BLOCKS, self.block_size, placement.dtype, placement.device)
        caches = [KVCache(config.model, len(model.layers), *sizes) for model in self.models]
        backends = select_backends(backend, attention_needs(config))
        self._attention = [
            stage_attention(config, model, backends, cache.layers, placement)
            for model, cache in zip(self.models, caches, strict=True)
        ]
        self._free = random.Random(3).sample(range(_NUM_BLOCKS), _NUM_BLOCKS)
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
            for model, attention in zip(self.models, self._attention, strict=True):
                hidden = forward(model, step, hidden, attention.over(step))
        assert hidden is not None
        return list(hidden[: step.num_tokens].split(step.query_lens.tolist()))

    def logits(self, step: PagedStep | PackedStep) -> list[torch.Tensor]:
        """Logits of each row's tokens, [query_len, vocab_size]."""
        with torch.inference_mode():
            return [self.models[-1].compute_logits(hidden) for hidden in self.run(step)]
