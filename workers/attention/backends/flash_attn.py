"""The base of the FlashAttention generations: which rows of a step go to which kernel.

Decode rows go to the project's own split-K kernel, because FlashAttention gives such a row one
block of threads a KV head, however long its context is (flash-attn-4 on Hopper has no split over
keys). All other rows go to FlashAttention.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch

from workers.attention.backends.optional import imported
from workers.attention.backends.shared_prefixes import SharedPrefixes, StepPrefixes
from workers.attention.base import AttentionNeeds, Capabilities, LayerCache
from workers.attention.concurrent_kernels import concurrently
from workers.attention.context_splits import min_splits
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """The step's R leading rows of one query each, tokens [0, R); their contexts are divided into
    at least `min_splits` splits. `prefixes` are those that are attended once."""

    step: PagedStep
    count: int
    min_splits: int
    prefixes: StepPrefixes | None

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True, slots=True)
class Chunks:
    """Rows of several queries, in FlashAttention's form.

    query_starts  int32[R + 1]      indices among the step's tokens
    context_lens  int32[R]
    page_table    int32[R, width]   block ids; wide enough for the longest context
    longest_query, longest_context  tokens
    first         index of these rows' first token in the step
    """

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    page_table: torch.Tensor
    longest_query: int
    longest_context: int
    first: int


@dataclass(frozen=True, slots=True)
class Texts:
    """Rows of a packed step: starts and end int32[R + 1], and the most tokens of a row."""

    starts: torch.Tensor
    longest: int


@dataclass(frozen=True, slots=True)
class FlashPlan:
    """A paged step's rows by kernel, and the KV indices int64[T] of its tokens."""

    kv_indices: torch.Tensor
    decodes: DecodeRows | None
    chunks: Chunks | None


class FlashAttentionBackend(ABC):
    """One FlashAttention generation; subclasses declare its capabilities and call it.

    Source: Dao, FlashAttention-2 (2023); Shah et al., FlashAttention-3 (2024).
    """

    capabilities: Capabilities

    def __init__(self, needs: AttentionNeeds) -> None:
        """Imports the library. Raises whatever a broken build raises on import."""
        self._block_size = needs.block_size
        self._scale, self._softcap = needs.kind.scale, needs.kind.softcap
        self._window = needs.kind.window
        # How far a query sees to either side; the library's causal attention ignores the right one.
        self._reach = None if self._window is None else self._window - 1
        self.shared_prefixes = SharedPrefixes.where_possible(needs)
        self.prefix_tiler = self.shared_prefixes.tiler if self.shared_prefixes else None
        if needs.paged:
            self._decode = imported("workers.kernels.attention.paged_decode", "attend")

    def plan_paged(self, step: PagedStep) -> FlashPlan:
        first = step.leading_decode_rows
        decodes = chunks = None
        if first:
            decodes = self._plan_decodes(step, first)
        if first < len(step.query_lens):
            chunks = self._plan_chunks(step, first)
        return FlashPlan(step.kv_indices, decodes, chunks)

    def _plan_decodes(self, step: PagedStep, count: int) -> DecodeRows:
        # A chunk's queries fill a tile by themselves: only decode rows gain by sharing.
        prefixes = self.shared_prefixes.plan(step, count) if self.shared_prefixes else None
        contexts = prefixes.contexts if prefixes else step.contexts[:count]
        return DecodeRows(step, count, min_splits(contexts, self._window), prefixes)

    def write_kv(
        self, keys: torch.Tensor, values: torch.Tensor, cache: LayerCache, plan: FlashPlan
    ) -> None:
        cache.write(keys, values, plan.kv_indices)

    def attend_paged(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: LayerCache,
        plan: FlashPlan,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        attended = _empty_like(queries) if out is None else out
        launches: list[Callable[[], None]] = []
        if decodes := plan.decodes:
            launches.append(lambda: self._attend_decodes(queries, cache, decodes, attended))
        if chunks := plan.chunks:
            launches.append(lambda: self._attend_chunks(queries, cache, chunks, attended))
        concurrently(launches)
        return attended

    def plan_packed(self, step: PackedStep, position_bias: torch.Tensor | None = None) -> Texts:
        return Texts(step.query_starts, int(step.query_lens.max()))

    def attend_packed(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: Texts
    ) -> torch.Tensor:
        out = _empty_like(queries)
        self._attend_texts(queries, keys, values, plan, out)
        return out

    def _attend_decodes(
        self, queries: torch.Tensor, cache: LayerCache, rows: DecodeRows, out: torch.Tensor
    ) -> None:
        step, count, prefixes = rows.step, len(rows), rows.prefixes
        if self.shared_prefixes and prefixes:
            self.shared_prefixes.attend(queries, cache, step, prefixes)
        self._decode(
            queries[:count],
            cache.keys,
            cache.values,
            step.block_tables,
            step.slots[:count],
            step.context_lens[:count],
            self._scale,
            out=out[:count],
            min_splits=rows.min_splits,
            window=self._window,
            softcap=self._softcap,
            prefix=prefixes.of_rows(slice(count)) if prefixes else None,
        )

    def _plan_chunks(self, step: PagedStep, first: int) -> Chunks:
        """The rows from `first` on; each row before them has one token."""
        longest = int(step.contexts[first:].max())
        width = -(-longest // self._block_size)
        return Chunks(
            query_starts=step.query_starts[first:],
            context_lens=step.context_lens[first:],
            page_table=step.block_tables[:, :width].index_select(0, step.slots[first:]),
            longest_query=int(step.query_lens[first:].max()),
            longest_context=longest,
            first=first,
        )

    @abstractmethod
    def _attend_chunks(
        self, queries: torch.Tensor, cache: LayerCache, rows: Chunks, out: torch.Tensor
    ) -> None:
        """Attend causally for `rows`, whose queries are the last tokens of their contexts.

        `queries` and `out` [T, H, D] are of all tokens of the step.
        """

    @abstractmethod
    def _attend_texts(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: Texts,
        out: torch.Tensor,
    ) -> None:
        """Every token attends to all of its row. `out` is [T, H, D]."""


def _empty_like(queries: torch.Tensor) -> torch.Tensor:
    """Contiguous, even if `queries` are not."""
    return torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
