"""Attention by the project's own Triton kernels, on CUDA.

For GPUs and dtypes without FlashAttention, and for few rows with long contexts, for which
FlashAttention is slow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from workers.attention.base import EVERY_KIND, QKV, AttentionBackend, AttentionNeeds, LayerCache
from workers.attention.prefix_tiles import PrefixTables, PrefixTiler
from workers.device.transfer import to_device
from workers.device.tuning import (
    SKEWED_MAX_SPLITS,
    SKEWED_MIN_CONTEXT,
    SKEWED_MIN_ROWS,
    SKEWED_SHARE,
    SKEWED_SPLIT_TOKENS,
)
from workers.kernels.launch import processors
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep, PrefixParts, PrefixTensors
from workers.step.rows import IntArray, leading_decode_rows


@dataclass(frozen=True, slots=True)
class StepPrefixes:
    """A step's prefixes that are attended once.

    tiles     int32[N, 6] (see `shared_prefix.attend`)
    parts     all rows' parts, memory that every layer overwrites
    contexts  int32[R], tokens of each row behind its prefix
    """

    tiles: torch.Tensor
    parts: PrefixParts
    contexts: IntArray

    def of_rows(self, rows: slice) -> PrefixParts:
        return self.parts._replace(starts=self.parts.starts[rows], counts=self.parts.counts[rows])


@dataclass(frozen=True, slots=True)
class PagedPlan:
    """A step whose first `decode_rows` rows have one query each.

    min_splits  the fewest splits of these rows' contexts
    prefixes    those that are attended once
    others      what the kernel for the other rows needs; None if there are none
    """

    step: PagedStep
    decode_rows: int
    min_splits: int
    prefixes: StepPrefixes | None
    others: Any


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """A step of texts, and the position bias."""

    step: PackedStep
    position_bias: torch.Tensor | None


class TritonBackend(AttentionBackend):
    """Split-K decode for the leading rows of one query, tiles of queries for the others."""

    label = "triton"
    capabilities = replace(
        EVERY_KIND,
        graph_safe=True,
        devices=("cuda",),
        disentangled=False,
        unattended=False,
        chunks_graph_safe=True,
        prefix_groups=True,
    )
    _all_rows_share = True
    """Whether rows behind the decode rows may share prefixes."""

    def __init__(self, needs: AttentionNeeds) -> None:
        super().__init__(needs)
        # Imported here, so that reading the capabilities does not need Triton.
        from workers.kernels.attention import (  # noqa: PLC0415
            kv_cache,
            packed_texts,
            paged_decode,
            paged_prefill,
            shared_prefix,
        )

        text_tile = packed_texts.tile_for_texts(needs.head_dim, needs.dtype)
        self._attend_texts = partial(packed_texts.attend, text_tile)
        self._decode, self._prefill = paged_decode, paged_prefill
        self._kv_cache, self._attend_prefixes = kv_cache, shared_prefix.attend
        if needs.paged and needs.kind.window is None:  # With a window, rows attend alone.
            heads = needs.num_heads, needs.num_kv_heads, needs.head_dim
            self.prefix_tiler = PrefixTiler(
                shared_prefix.tokens_a_tile(*heads, needs.dtype),
                needs.num_kv_heads,
                needs.block_size,
                processors(torch.device(needs.device)),
            )

    def plan_paged(self, step: PagedStep) -> PagedPlan:
        decode_rows = leading_decode_rows(step.query_lens)
        prefixes = others = None
        if self.prefix_tiler is not None:
            prefixes = self._plan_prefixes(self.prefix_tiler, step, decode_rows)
        contexts = prefixes.contexts if prefixes else step.contexts
        splits = min_splits(contexts[:decode_rows], self._kind.window) if decode_rows else 1
        if decode_rows < len(step.query_lens):
            others = self._plan_others(step, decode_rows)
        return PagedPlan(step, decode_rows, splits, prefixes, others)

    def write_kv(self, qkv: QKV, cache: LayerCache, kv_indices: torch.Tensor) -> None:
        target = self._kv_cache.KVTarget(kv_indices, *cache)
        self._kv_cache.write_kv(qkv.keys, qkv.values, target)

    def attend_paged(
        self,
        qkv: QKV,
        cache: LayerCache,
        plan: PagedPlan,
        out: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        queries, step, prefixes = qkv.queries, plan.step, plan.prefixes
        out = queries.new_empty(queries.shape) if out is None else out
        if prefixes:
            paged = cache.keys, cache.values, step.block_tables, step.slots
            planned = prefixes.tiles, prefixes.parts, self._kind
            self._attend_prefixes(queries, *paged, *planned, cache.scales)
        launches: list[Callable[[], object]] = []
        if plan.decode_rows:
            launches.append(partial(self._attend_decodes, queries, cache, plan, out, sinks))
        if plan.others is not None:
            launches.append(partial(self._attend_others, queries, cache, plan, out, sinks))
        concurrently(launches)
        return out

    def plan_packed(
        self, step: PackedStep, position_bias: torch.Tensor | None = None
    ) -> PackedPlan:
        return PackedPlan(step, position_bias)

    def attend_packed(self, qkv: QKV, plan: PackedPlan) -> torch.Tensor:
        out = qkv.queries.new_empty(qkv.queries.shape)
        own = plan.step.tiles, plan.step.positions
        self._attend_texts(*qkv, *own, self._kind, out, plan.position_bias)
        return out

    def _plan_others(self, step: PagedStep, first: int) -> Any:
        """The most queries of a row from `first` on: what `_attend_others` needs."""
        return int(step.query_lens[first:].max())

    def _attend_decodes(
        self,
        queries: torch.Tensor,
        cache: LayerCache,
        plan: PagedPlan,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:
        step, rows = plan.step, slice(plan.decode_rows)
        self._decode.attend(
            queries[rows],
            *(cache.keys, cache.values, step.block_tables, step.slots[rows]),
            step.context_lens[rows],
            self._kind,
            out[rows],
            scales=cache.scales,
            sinks=sinks,
            min_splits=plan.min_splits,
            prefix=plan.prefixes.of_rows(rows) if plan.prefixes else None,
        )

    def _attend_others(
        self,
        queries: torch.Tensor,
        cache: LayerCache,
        plan: PagedPlan,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:
        """Attend causally for the rows behind the decode rows. `queries` and `out` [T, H, D] are of
        all tokens of the step."""
        step, rows = plan.step, slice(plan.decode_rows, None)
        paging = step.block_tables, step.slots[rows], step.context_lens[rows], cache.scales
        prefixes = plan.prefixes if self._all_rows_share else None
        self._prefill.attend(
            *(queries, cache.keys, cache.values),
            *(step.query_starts[rows], plan.others),
            self._kind,
            out,
            self._prefill.Paging(*paging),
            sinks=sinks,
            prefix=prefixes.of_rows(rows) if prefixes else None,
        )

    def _plan_prefixes(
        self, tiler: PrefixTiler, step: PagedStep, decode_rows: int
    ) -> StepPrefixes | None:
        """The prefixes worth it among the groups of rows that may share one. None without any."""
        rows = None if self._all_rows_share else decode_rows
        tokens, own, tensors = len(step.query_lens), step.contexts, step.prefixes
        if tensors is None:
            tables = self._prefix_tables(tiler, step, step.query_lens[:rows])
            if tables is None:
                return None
            tiles, starts, counts = to_device([*tables], step.slots.device)
            tensors = PrefixTensors(tiles, starts, counts, int(tables.counts.max()))
            # Decode rows come first: memory behind the last grouped token is not needed.
            tokens = int((tables.tiles[:, 0] + tables.tiles[:, 1]).max())
            own = step.contexts[:rows] - tables.starts
        device, shape = step.slots.device, (tensors.most_parts, tokens, self._needs.num_heads)
        outputs = torch.empty((*shape, self._needs.head_dim), dtype=torch.float32, device=device)
        sums = torch.empty(shape, dtype=torch.float32, device=device)
        parts = PrefixParts(outputs, sums, tensors.starts, tensors.counts)
        return StepPrefixes(tensors.tiles, parts, own)

    @staticmethod
    def _prefix_tables(
        tiler: PrefixTiler, step: PagedStep, query_lens: IntArray
    ) -> PrefixTables | None:
        """For the first rows, of `query_lens` tokens. Groups of them may have rows beyond."""
        if not len(step.groups):
            return None
        groups = step.groups[step.groups[:, 0] < len(query_lens)]
        groups[:, 1] = np.minimum(groups[:, 1], len(query_lens) - groups[:, 0])
        return tiler.tables(groups, query_lens) if len(groups) else None


def concurrently(launches: Sequence[Callable[[], object]]) -> None:
    """Call each of `launches`, of which none may read or overwrite another's results.

    In a CUDA graph that is being captured they become parallel branches. Elsewhere launching takes
    as long as the kernels.
    """
    capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    if len(launches) < 2 or not capturing:
        for launch in launches:
            launch()
        return
    main = torch.cuda.current_stream()
    others = [torch.cuda.Stream() for _ in launches[1:]]
    for stream in others:
        stream.wait_stream(main)
    launches[0]()
    for stream, launch in zip(others, launches[1:], strict=True):
        with torch.cuda.stream(stream):
            launch()
        main.wait_stream(stream)


def min_splits(contexts: IntArray, window: int | None = None) -> int:
    """The fewest splits into which a decode kernel divides each of the contexts int32[R].

    One, unless one context, up to the window, is so much longer than the others that one program
    for it would delay the whole step.
    """
    if window is not None:
        contexts = np.minimum(contexts, np.int32(window))
    longest = int(contexts.max(initial=0))
    fair_share = int(contexts.sum()) // SKEWED_SHARE
    if len(contexts) <= SKEWED_MIN_ROWS or longest <= max(SKEWED_MIN_CONTEXT, fair_share):
        return 1
    return min(longest // SKEWED_SPLIT_TOKENS, SKEWED_MAX_SPLITS)
