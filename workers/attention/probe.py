"""A backend tried out before it is trusted: small steps of the model's own shape, timed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import shorten

import numpy as np
import numpy.typing as npt
import torch

from workers.attention.base import AttentionBackend, AttentionNeeds, LayerCache
from workers.device.transfer import to_device
from workers.step.tensors import IntArray, StepTensors

LongArray = npt.NDArray[np.int64]

_PAGED: dict[str, list[tuple[int, int]]] = {
    "decode": [(1023, 1)] * 64,
    "chunk": [(4096, 4096)],
    "short prompts": [(0, 32)] * 320,
}
"""A decoder's steps by what they hold: rows of (cached tokens, queries), about as much work each as
a busy server has of its kind. flash-attn-4 has a variant for more than 256 rows, which takes
seconds to compile: here, and not in front of a user."""

_BIDIRECTIONAL: dict[str, list[tuple[int, int]]] = {
    "long texts": [(0, 512)] * 8,
    "short texts": [(0, 32)] * 320,
}
_REPEATS = 5
_HEAD_START = 8
"""Matrix products of 0.14 TFLOP each: some milliseconds."""

_LONGEST_REASON = 400
"""Characters of an error; a compiler's can run to pages."""


class ProbeError(Exception):
    """A backend does not load, compile or run here, or returns what is not finite."""


@dataclass(frozen=True, slots=True)
class Probed:
    """A backend that works, and the time that one layer of each step takes it."""

    backend: AttentionBackend
    milliseconds: dict[str, float]


class Probe:
    """Steps and a filled KV cache of their own, the same for every backend."""

    def __init__(self, needs: AttentionNeeds) -> None:
        self._needs = needs
        self._device = torch.device(needs.device)
        self._random = torch.Generator(self._device).manual_seed(0)
        kinds = _PAGED if needs.paged else _BIDIRECTIONAL
        self.steps = {kind: self._step(rows) for kind, rows in kinds.items()}
        tokens = max(step.num_tokens for step in self.steps.values())
        self._queries = self._normal(tokens, needs.num_heads, needs.head_dim)
        self._keys = self._normal(tokens, needs.num_kv_heads, needs.head_dim)
        self._cache = self._filled_cache() if needs.paged else None

    @torch.inference_mode()
    def run(self, implementation: type[AttentionBackend]) -> Probed:
        """Build the backend, run every step once, then again against the clock. CUDA only.

        Raises ProbeError from whatever went wrong.
        """
        times: dict[str, float] = {}
        try:
            backend = implementation(self._needs)
            for kind, step in self.steps.items():
                attend = self.attend(backend, step)
                if not bool(attend().isfinite().all()):
                    raise ProbeError(f"{kind}: not finite")
                times[kind] = _milliseconds(attend, self._device)
        except ProbeError:
            raise
        except Exception as error:
            line = shorten(str(error), _LONGEST_REASON)
            raise ProbeError(f"{type(error).__name__}: {line}") from error
        return Probed(backend, times)

    def attend(self, backend: AttentionBackend, step: StepTensors) -> Callable[[], torch.Tensor]:
        """One of the probe's steps, planned and cached: a call is one layer's, [T, H, D]."""
        plan, total = backend.plan(step), step.num_tokens
        queries, keys = self._queries[:total], self._keys[:total]
        if self._cache is not None:
            backend.write_kv(keys, keys, self._cache, plan)
        return lambda: backend.forward(queries, keys, keys, self._cache, plan)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(
            shape, generator=self._random, device=self._device, dtype=self._needs.dtype
        )

    def _filled_cache(self) -> LayerCache:
        needs, size = self._needs, self._needs.block_size
        blocks = max(int((-(-step.contexts // size)).sum()) for step in self.steps.values())
        shape = (blocks, size, needs.num_kv_heads, needs.head_dim)
        return LayerCache(self._normal(*shape), self._normal(*shape))

    def _step(self, rows: Sequence[tuple[int, int]]) -> StepTensors:
        """A step of these rows; a decoder's row r is in slot r, its blocks behind row r - 1's."""
        lens = np.array([queries for _, queries in rows], np.int32)
        contexts = lens + np.array([cached for cached, _ in rows], np.int32)
        ends = np.cumsum(lens, dtype=np.int64)
        row = np.repeat(np.arange(len(rows)), lens)
        positions = np.arange(int(ends[-1])) + (contexts - ends)[row]
        starts = np.append(ends - lens, ends[-1]).astype(np.int32)
        tokens, places, query_starts, context_lens = to_device(
            [np.zeros_like(positions), positions, starts, contexts], self._device
        )
        kv_indices, block_tables, slots = self._paging(contexts, row, positions)
        return StepTensors(
            tokens=tokens,
            positions=places,
            token_types=None,
            kv_indices=kv_indices,
            block_tables=block_tables,
            slots=slots,
            query_starts=query_starts,
            context_lens=context_lens,
            query_lens=lens,
            contexts=contexts,
        )

    def _paging(
        self, contexts: IntArray, row: LongArray, positions: LongArray
    ) -> Sequence[torch.Tensor | None]:
        """kv_indices, block_tables and slots, by each token's row and position."""
        if not self._needs.paged:
            return None, None, None
        size = self._needs.block_size
        pages = -(-contexts // size)
        firsts = np.cumsum(pages, dtype=np.int64) - pages
        tables = firsts[:, None] + np.arange(int(pages.max()))
        mapping = tables[row, positions // size] * size + positions % size
        slots = np.arange(len(contexts), dtype=np.int32)
        return to_device([mapping, tables.astype(np.int32), slots], self._device)


def _milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """The device's time for one run, out of several in a row.

    They are queued while it is busy with something else, so that launching them, which costs each
    library differently on the host, is not what is measured: in a server it is hidden likewise.
    """
    square = torch.ones((4096, 4096), dtype=torch.float16, device=device)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(_HEAD_START):
        torch.mm(square, square)
    start.record()
    for _ in range(_REPEATS):
        run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / _REPEATS
