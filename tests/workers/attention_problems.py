"""Problems for attention backends: random queries, keys and values, and steps over them."""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from tests.workers.step_tensors import PagedRow, paged_step
from workers.attention.base import QKV, AttentionBackend, AttentionNeeds, LayerCache
from workers.contract.model_config import AttentionKind
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep


def attention_needs(**changes: Any) -> AttentionNeeds:
    """What a small decoder on the CPU needs, but for `changes`: to the needs, or to their kind."""
    needs: dict[str, Any] = {
        "device": "cpu",
        "dtype": torch.float32,
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 32,
        "block_size": 4,
    }
    of_kind = {key: changes.pop(key) for key in list(changes) if key in _KIND}
    needs |= changes
    kind = {"causal": of_kind.pop("paged", True), "scale": needs["head_dim"] ** -0.5} | of_kind
    return AttentionNeeds(kind=AttentionKind(**kind), **needs)


_KIND = {"paged", *AttentionKind.__struct_fields__}
"""`paged` stands for `causal`."""

StepT = TypeVar("StepT", PagedStep, PackedStep)


class Problem:
    """A step of rows (cached tokens, queries), with every context's keys and values.

    Rows of `groups` (first row, rows, prefix tokens) begin with the first one's blocks. Cache slots
    of no row hold `unused`: NaN unless told, so that reading one would show.
    """

    def __init__(
        self,
        rows: Sequence[tuple[int, int]],
        want: AttentionNeeds,
        *,
        groups: Sequence[tuple[int, int, int]] = (),
        seed: int = 0,
        unused: float = torch.nan,
    ) -> None:
        random_numbers = torch.Generator().manual_seed(seed)
        self.want, self.rows, self._unused = want, rows, unused
        total = sum(queries for _, queries in rows)
        shapes = [
            (total, want.num_heads, want.head_dim),
            *[(start + queries, want.num_kv_heads, want.head_dim) for start, queries in rows] * 2,
        ]
        self.queries, *contexts = [
            torch.randn(shape, generator=random_numbers).to(want.device, want.dtype)
            for shape in shapes
        ]
        self.row_keys, self.row_values = contexts[: len(rows)], contexts[len(rows) :]
        self.tables = _random_tables(
            [-(-(start + queries) // want.block_size) for start, queries in rows]
        )
        for first, members, prefix in groups:
            for member in range(first + 1, first + members):
                self._share(first, member, prefix)
        paged_rows = [
            PagedRow([0] * queries, start, table)
            for (start, queries), table in zip(rows, self.tables, strict=True)
        ]
        step = on_device(paged_step(paged_rows, want.block_size), want.device)
        known = np.array(groups, np.int32).reshape(-1, 3)
        self.step = dataclasses.replace(step, groups=known)

    def solve(self, backend: AttentionBackend) -> torch.Tensor:
        """A backend's answer, [T, H, D]; only earlier tokens are in the cache beforehand."""
        plan, cache = backend.plan_paged(self.step), self.cache()
        qkv = QKV(self.queries, self.new_keys, self.new_values)
        backend.write_kv(qkv, cache, self.step.kv_indices)
        return backend.attend_paged(qkv, cache, plan)

    def cache(self) -> LayerCache:
        """The earlier tokens of every row, in its blocks."""
        return LayerCache(self._cached(self.row_keys), self._cached(self.row_values))

    @property
    def new_keys(self) -> torch.Tensor:
        """Those of the step's tokens, [T, Hkv, D]."""
        return self._new(self.row_keys)

    @property
    def new_values(self) -> torch.Tensor:
        return self._new(self.row_values)

    def _share(self, first: int, member: int, prefix: int) -> None:
        whole = prefix // self.want.block_size
        self.tables[member][:whole] = self.tables[first][:whole]
        for contexts in (self.row_keys, self.row_values):
            contexts[member][:prefix] = contexts[first][:prefix]

    def _cached(self, contexts: list[torch.Tensor]) -> torch.Tensor:
        want, size = self.want, self.want.block_size
        blocks = max(max(table) for table in self.tables) + 1
        shape = (blocks * size, want.num_kv_heads, want.head_dim)
        slots = torch.full(shape, self._unused, dtype=want.dtype, device=want.device)
        for (start, _), table, context in zip(self.rows, self.tables, contexts, strict=True):
            places = torch.arange(start)
            own = torch.tensor(table)[places // size] * size + places % size
            slots[own.to(want.device)] = context[:start]
        return slots.view(blocks, size, *shape[1:])

    def _new(self, contexts: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(
            [context[start:] for (start, _), context in zip(self.rows, contexts, strict=True)]
        )


def on_device(step: StepT, device: str) -> StepT:
    """The same step with its tensors on another device."""
    tensors = {
        field.name: value.to(device)
        for field in dataclasses.fields(step)
        if isinstance(value := getattr(step, field.name), torch.Tensor)
    }
    return dataclasses.replace(step, **tensors)


def _random_tables(counts: list[int]) -> list[list[int]]:
    free = random.Random(1).sample(range(1, sum(counts) + 2), sum(counts))
    return [[free.pop() for _ in range(count)] for count in counts]
