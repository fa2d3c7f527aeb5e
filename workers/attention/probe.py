"""Tries a backend out before it is used: times small steps of the model's own shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from textwrap import shorten

import numpy as np
import torch

from workers.attention.base import AttentionBackend, AttentionNeeds, LayerCache
from workers.contract.messages import EncodeStep
from workers.device.timing import queued_milliseconds
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep
from workers.step.rows import IntArray, StepRows
from workers.step.slot_table import SlotTable

_PAGED: dict[str, list[tuple[int, int]]] = {
    "decode": [(1023, 1)] * 64,
    "chunk": [(4096, 4096)],
    "short prompts": [(0, 32)] * 320,
}
"""A decoder's steps: rows of (cached tokens, queries), each step about as much work as on a busy
server. flash-attn-4 compiles another variant for more than 256 rows, which takes seconds: it must
happen here, and not during a request."""

_GROUPED = [*[(1023, 1)] * 64, *[(1023, 4)] * 16]
"""Rows that share prefixes, the first 64 one and the others one. Run, so that it is compiled, and
not timed: few steps are like it."""

_BIDIRECTIONAL: dict[str, list[tuple[int, int]]] = {
    "long texts": [(0, 512)] * 8,
    "short texts": [(0, 32)] * 320,
}
_MAX_REASON = 400
"""Characters of an error message; a compiler's can fill pages."""


class ProbeError(Exception):
    """A backend does not load, compile or run here, or returns values that are not finite."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A backend that works, and its time for one layer of each kind of step."""

    backend: AttentionBackend
    milliseconds: dict[str, float]


class Probe:
    """Steps, and a KV cache filled for them, the same for every backend."""

    def __init__(self, needs: AttentionNeeds) -> None:
        self._needs = needs
        self._device = torch.device(needs.device)
        self._random = torch.Generator(self._device).manual_seed(0)
        kinds = _PAGED if needs.paged else _BIDIRECTIONAL
        self.steps = {kind: self._step(rows) for kind, rows in kinds.items()}
        tokens = max(step.num_tokens for step in self.steps.values())
        self._queries = self._normal(tokens, needs.num_heads, needs.head_dim)
        self._keys = self._normal(tokens, needs.num_kv_heads, needs.head_dim)

    @torch.inference_mode()
    def run(self, implementation: type[AttentionBackend]) -> Probed:
        """Build the backend, run every step once, then time it. CUDA only.

        Raises ProbeError for any failure.
        """
        times: dict[str, float] = {}
        try:
            backend = implementation(self._needs)
            for kind, step in self.steps.items():
                attend = self.attend(backend, step)
                if not bool(attend().isfinite().all()):
                    raise ProbeError(f"{kind}: not finite")
                times[kind] = queued_milliseconds(attend, self._device)
            if self._needs.paged and backend.capabilities.prefix_groups:
                self.attend(backend, self._grouped_step())()
        except ProbeError:
            raise
        except Exception as error:
            line = shorten(str(error), _MAX_REASON)
            raise ProbeError(f"{type(error).__name__}: {line}") from error
        return Probed(backend, times)

    def attend(
        self, backend: AttentionBackend, step: PagedStep | PackedStep
    ) -> Callable[[], torch.Tensor]:
        """Plan a step and fill the cache; each call attends for one layer, [T, H, D]."""
        total = step.num_tokens
        queries, keys = self._queries[:total], self._keys[:total]
        if isinstance(step, PackedStep):
            packed = backend.plan_packed(step)
            return lambda: backend.attend_packed(queries, keys, keys, packed)
        plan, cache = backend.plan_paged(step), self._cache
        backend.write_kv(keys, keys, cache, plan)
        return lambda: backend.attend_paged(queries, keys, keys, cache, plan)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(
            shape, generator=self._random, device=self._device, dtype=self._needs.dtype
        )

    @cached_property
    def _cache(self) -> LayerCache:
        """Filled, and large enough for the largest paged step."""
        needs, size = self._needs, self._needs.block_size
        steps = [step for step in self.steps.values() if isinstance(step, PagedStep)]
        contexts = [step.contexts for step in steps]
        contexts.append(np.array(_GROUPED, np.int32).sum(axis=1, dtype=np.int32))
        blocks = max(int(_pages(each, size).sum()) for each in contexts)
        shape = (blocks, size, needs.num_kv_heads, needs.head_dim)
        return LayerCache(self._normal(*shape), self._normal(*shape))

    def _step(self, rows: Sequence[tuple[int, int]]) -> PagedStep | PackedStep:
        """A step of these rows. If paged, row r is in slot r, and its blocks follow row r - 1's."""
        cached, lens = np.array(rows, np.int32).T
        tokens = np.zeros(int(lens.sum()), np.int32)
        if not self._needs.paged:
            message = EncodeStep(step=0, tokens=tokens.tobytes(), query_lens=lens.tobytes())
            return PackedStep.of(message, self._device)
        slots = np.arange(len(rows), dtype=np.int32)
        step_rows = StepRows.over(slots, lens, cached)
        return PagedStep.of(step_rows, tokens, self._slot_table(step_rows))

    def _grouped_step(self) -> PagedStep:
        """A step of `_GROUPED`; what its groups share are in truth the first row's blocks."""
        size = self._needs.block_size
        prefix = 1023 // size * size
        groups = [(0, 64, prefix), (64, 16, prefix)]
        step = self._step(_GROUPED)
        assert isinstance(step, PagedStep), "of a decoder"
        return replace(step, groups=np.array(groups, np.int32))

    def _slot_table(self, rows: StepRows) -> SlotTable:
        size = self._needs.block_size
        pages = _pages(rows.contexts, size)
        blocks = np.arange(int(pages.sum()), dtype=np.int32)
        owners = np.repeat(rows.slots, pages)
        firsts = (np.cumsum(pages) - pages)[owners]
        table = SlotTable(len(pages), int(pages.max()), size, 0, self._device)
        updates = np.stack([owners, blocks - firsts, blocks], axis=1, dtype=np.int32)
        table.update(updates.tobytes())
        return table


def _pages(contexts: IntArray, block_size: int) -> IntArray:
    """How many blocks each context takes."""
    return -(-contexts // block_size)
