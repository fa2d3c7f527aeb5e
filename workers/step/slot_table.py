"""A stage's memory of each slot between steps, so that messages carry only what changed."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

from workers.device.transfer import on_device, to_device
from workers.step.rows import IntArray, LongArray, StepRows


class SlotTable:
    """Block tables and last sampled token of every slot.

    block_tables   int32[max_running + 1, num_tables * max_blocks], for computing KV indices on the
                   host: a slot's tables one after another. They hold pages: block b of a table is
                   page b * n in its layers' caches, where these have n parts of a plane.
    device_tables  the same on the device. On the CPU the two share memory.
    last_tokens    int64[max_running + 1] on the device. The first stage reads it. Where GPUs share
                   memory, the last stage has the first one's, and writes there.

    Slot `max_running` belongs to no request but to rows that pad a step; all its blocks are
    `scratch_block`.
    """

    def __init__(
        self,
        max_running: int,
        max_blocks: int,
        block_size: int,
        scratch_block: int,
        device: torch.device,
        last_tokens: torch.Tensor | None = None,
        table_parts: Sequence[int] = (1,),
    ) -> None:
        """`last_tokens` is memory to share. None: the table has its own. `table_parts` are the
        layout's."""
        self.device = device
        self.num_tables, self.max_blocks, self.block_size = len(table_parts), max_blocks, block_size
        self.padding_slot = max_running
        self._parts = np.array(table_parts, np.int32)
        self._starts = np.arange(self.num_tables)[:, None] * max_blocks
        self.block_tables = np.zeros((max_running + 1, self.num_tables * max_blocks), np.int32)
        self.block_tables[max_running] = np.repeat(self._parts * scratch_block, max_blocks)
        self.device_tables = on_device(self.block_tables, device)
        self.last_tokens = (
            torch.zeros(max_running + 1, dtype=torch.int64, device=device)
            if last_tokens is None
            else last_tokens
        )
        # Triton is not installed on every machine without a GPU.
        on_cuda = device.type == "cuda"
        self._kernels: Any = (
            import_module("workers.kernels.sampling.last_tokens") if on_cuda else None
        )

    def update(self, block_updates: bytes) -> None:
        if block_updates:
            updates = np.frombuffer(block_updates, np.int32).reshape(-1, 3)
            entries = updates[:, 0].astype(np.int64) * self.block_tables.shape[1] + updates[:, 1]
            pages = updates[:, 2] * self._parts[updates[:, 1] // self.max_blocks]
            self.block_tables.reshape(-1)[entries] = pages
            if self.device_tables.is_cuda:
                # In stream order: steps that are queued still read the table as it was.
                changed, new = to_device([entries, pages], self.device_tables.device)
                self.device_tables.view(-1).index_copy_(0, changed, new)

    def kv_indices(self, rows: StepRows) -> LongArray:
        """The KV index of each of a step's tokens by each of its slot's tables: int64[N, T],
        block * block_size + offset."""
        index, offset = np.divmod(rows.positions, self.block_size)
        blocks = self.block_tables[rows.token_slots, self._starts + index]
        return blocks * np.int64(self.block_size) + offset

    @property
    def scratch_kv_indices(self) -> LongArray:
        """A KV index that nobody reads, by each table: int64[N, 1]."""
        pages = self.block_tables[self.padding_slot, self._starts]
        return pages * np.int64(self.block_size)

    def store_last_tokens(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Keep each slot's newest token: `slots`, each once, and `tokens` int32[S] on the device.

        A failed row's -1 becomes 0, because a step submitted ahead may still look it up in the
        embedding. The engine drops that row's result.
        """
        if self._kernels is not None:
            self._kernels.keep(self.last_tokens, slots, tokens)
        else:
            self.last_tokens[slots] = tokens.clamp(min=0).long()

    def store_sampled(self, slots: IntArray, tokens: IntArray) -> None:
        self.store_last_tokens(*to_device([slots, tokens], self.device))

    def resolve(self, slots: torch.Tensor, tokens: torch.Tensor, out: torch.Tensor) -> None:
        """Copy `tokens` to `out`, int64[T] each, with the newest token of its slot (`slots`
        int32[T]) in place of each -1."""
        if self._kernels is not None:
            self._kernels.look_up(self.last_tokens, slots, tokens, out)
        else:
            torch.where(tokens < 0, self.last_tokens.index_select(0, slots), tokens, out=out)

    def clear(self) -> None:
        self.block_tables[: self.padding_slot] = 0
        self.device_tables[: self.padding_slot] = 0
        self.last_tokens.zero_()
