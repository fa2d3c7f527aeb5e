"""Prefixes that rows of a step share, attended once for all of them by our own kernel."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch

from workers.attention.backends.optional import imported
from workers.attention.base import AttentionNeeds, LayerCache
from workers.attention.prefix_tiles import PrefixTiler
from workers.device.transfer import to_device
from workers.kernels.launch import processors
from workers.step.paged_step import PagedStep
from workers.step.prefixes import PrefixParts, PrefixTensors
from workers.step.rows import IntArray


@dataclass(frozen=True, slots=True)
class StepPrefixes:
    """A step's prefixes that are attended once.

    tiles     int32[N, 6]      (see `shared_prefix.attend`)
    parts     all rows' parts  memory that every layer overwrites
    contexts  int32[R]         tokens of each row behind its prefix
    """

    tiles: torch.Tensor
    parts: PrefixParts
    contexts: IntArray

    def of_rows(self, rows: slice) -> PrefixParts:
        """What the `rows` know of their prefixes."""
        starts, counts = self.parts.starts[rows], self.parts.counts[rows]
        return self.parts._replace(starts=starts, counts=counts)


class SharedPrefixes:
    """Plans and attends prefixes for one kind of layers, whose attention has no window."""

    @classmethod
    def where_possible(cls, needs: AttentionNeeds) -> Self | None:
        """None for layers without a cache or with a window, whose rows attend alone."""
        return cls(needs) if needs.paged and needs.kind.window is None else None

    def __init__(self, needs: AttentionNeeds) -> None:
        self._needs = needs
        self._attend = imported("workers.kernels.attention.shared_prefix", "attend")
        tokens_a_tile = imported("workers.kernels.attention.shared_prefix", "tokens_a_tile")
        self.tiler = PrefixTiler(
            tokens_a_tile(needs.num_heads, needs.num_kv_heads, needs.head_dim, needs.dtype),
            needs.num_kv_heads,
            needs.block_size,
            processors(torch.device(needs.device)),
        )

    def plan(self, step: PagedStep, rows: int | None = None) -> StepPrefixes | None:
        """The prefixes worth it among the groups of the step's first `rows` rows, or of all. None
        if there are none."""
        if step.prefixes is not None:
            return self._planned(step.prefixes, len(step.query_lens), step)
        query_lens = step.query_lens[:rows]
        count = len(query_lens)
        groups = step.groups[step.groups[:, 0] < count]
        # The last of these may have rows beyond.
        groups[:, 1] = np.minimum(groups[:, 1], count - groups[:, 0])
        tables = self.tiler.tables(groups, query_lens) if len(groups) else None
        if tables is None:
            return None
        tiles, starts, counts = to_device(list(tables), step.slots.device)
        tensors = PrefixTensors(tiles, starts, counts, int(tables.counts.max()))
        # Decode rows come first: memory behind the last grouped token is not needed.
        tokens = int((tables.tiles[:, 0] + tables.tiles[:, 1]).max())
        own = self._planned(tensors, tokens, step)
        return replace(own, contexts=step.contexts[:rows] - tables.starts)

    def attend(
        self, queries: torch.Tensor, cache: LayerCache, step: PagedStep, prefixes: StepPrefixes
    ) -> None:
        """Fill the parts of a layer's `queries` [T, H, D]."""
        kind = self._needs.kind
        paged = cache.keys, cache.values, step.block_tables, step.slots
        self._attend(queries, *paged, prefixes.tiles, prefixes.parts, kind.scale, kind.softcap)

    def _planned(self, tensors: PrefixTensors, tokens: int, step: PagedStep) -> StepPrefixes:
        needs, device = self._needs, step.slots.device
        shape = (tensors.most_parts, tokens, needs.num_heads)
        outputs = torch.empty((*shape, needs.head_dim), dtype=torch.float32, device=device)
        sums = torch.empty(shape, dtype=torch.float32, device=device)
        parts = PrefixParts(outputs, sums, tensors.starts, tensors.counts)
        return StepPrefixes(tensors.tiles, parts, step.contexts)
