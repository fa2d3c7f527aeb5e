"""Attention by the project's own Triton kernels, on CUDA.

They serve GPUs and dtypes without FlashAttention, and few sequences with long contexts, for which
FlashAttention is slow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from workers.attention.backends.shared_prefixes import SharedPrefixes, StepPrefixes
from workers.attention.base import AttentionNeeds, Capabilities, LayerCache
from workers.attention.concurrent_kernels import concurrently
from workers.attention.context_splits import min_splits
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


@dataclass(frozen=True, slots=True)
class PagedPlan:
    """A step whose first `decode_rows` rows have one query each; their contexts are divided into at
    least `min_splits` splits. `longest` is the most queries of any other row. `prefixes` are those
    that are attended once."""

    step: PagedStep
    decode_rows: int
    longest: int
    min_splits: int
    prefixes: StepPrefixes | None


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """Starts and end of the rows int32[R + 1], the most tokens of a row, and the position bias."""

    starts: torch.Tensor
    longest: int
    position_bias: torch.Tensor | None


class TritonBackend:
    """Split-K decode for the leading rows of one query, tiles of queries for the others."""

    capabilities = Capabilities(
        causal_paged=True,
        bidirectional=True,
        causal_windows=True,
        bidirectional_windows=True,
        softcap=True,
        position_bias=True,
        graph_safe=True,
        chunks_graph_safe=True,
        prefix_groups=True,
        devices=("cuda",),
        dtypes=(torch.bfloat16, torch.float16, torch.float32),
    )

    def __init__(self, needs: AttentionNeeds) -> None:
        # Imported here, so that reading the capabilities does not need Triton.
        from workers.kernels.attention import (  # noqa: PLC0415
            paged_decode,
            paged_prefill,
            rotate_and_cache,
        )

        self._decode, self._prefill = paged_decode, paged_prefill
        self._write = rotate_and_cache.write_kv
        self._kind = needs.kind
        self.shared_prefixes = SharedPrefixes.where_possible(needs)
        self.prefix_tiler = self.shared_prefixes.tiler if self.shared_prefixes else None

    def plan_paged(self, step: PagedStep) -> PagedPlan:
        decode_rows = step.leading_decode_rows
        longest = int(step.query_lens[decode_rows:].max(initial=0))
        prefixes = self.shared_prefixes.plan(step) if self.shared_prefixes else None
        contexts = prefixes.contexts if prefixes else step.contexts
        splits = min_splits(contexts[:decode_rows], self._kind.window)
        return PagedPlan(step, decode_rows, longest, splits, prefixes)

    def write_kv(
        self, keys: torch.Tensor, values: torch.Tensor, cache: LayerCache, plan: PagedPlan
    ) -> None:
        self._write(keys, values, plan.step.kv_indices, cache.keys, cache.values)

    def attend_paged(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: LayerCache,
        plan: PagedPlan,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if out is None:
            out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        if self.shared_prefixes and plan.prefixes:
            self.shared_prefixes.attend(queries, cache, plan.step, plan.prefixes)
        concurrently(self._launches(queries, cache, plan, out))
        return out

    def plan_packed(
        self, step: PackedStep, position_bias: torch.Tensor | None = None
    ) -> PackedPlan:
        return PackedPlan(step.query_starts, int(step.query_lens.max()), position_bias)

    def attend_packed(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, plan: PackedPlan
    ) -> torch.Tensor:
        return self._prefill.attend_bidirectional(
            queries,
            keys,
            values,
            plan.starts,
            plan.longest,
            self._kind.scale,
            window=self._kind.window,
            softcap=self._kind.softcap,
            position_bias=plan.position_bias,
        )

    def _launches(
        self, queries: torch.Tensor, cache: LayerCache, plan: PagedPlan, out: torch.Tensor
    ) -> list[Callable[[], object]]:
        """One launch for the decode rows, and one for the others, if there are any."""
        step, decode_rows, prefixes = plan.step, plan.decode_rows, plan.prefixes
        paged = cache.keys, cache.values, step.block_tables
        launches: list[Callable[[], object]] = []
        if decode_rows:
            decode = partial(
                self._decode.attend,
                queries[:decode_rows],
                *paged,
                step.slots[:decode_rows],
                step.context_lens[:decode_rows],
                self._kind.scale,
                out[:decode_rows],
                min_splits=plan.min_splits,
                window=self._kind.window,
                softcap=self._kind.softcap,
                prefix=prefixes.of_rows(slice(decode_rows)) if prefixes else None,
            )
            launches.append(decode)
        if plan.longest:
            prefill = partial(
                self._prefill.attend,
                queries,
                *paged,
                step.slots[decode_rows:],
                step.query_starts[decode_rows:],
                step.context_lens[decode_rows:],
                plan.longest,
                self._kind.scale,
                out,
                window=self._kind.window,
                softcap=self._kind.softcap,
                prefix=prefixes.of_rows(slice(decode_rows, None)) if prefixes else None,
            )
            launches.append(prefill)
        return launches
