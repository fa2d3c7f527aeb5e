"""Problems for attention: random queries, keys and values, and steps over them."""

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tests.workers.step_maker import encoder_step
from workers.attention.base import QKV, AttentionBackend, AttentionNeeds, LayerCache
from workers.attention.distance_vectors import DistanceVectors
from workers.attention.fp8_numbers import dequantized, packed, quantized
from workers.contract.model_config import AttentionKind
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep
from workers.step.rows import StepRows

Heads = tuple[int, int, int]
"""Query heads, KV heads, head size."""


def attention_needs(heads: Heads = (4, 4, 32), /, **changes: Any) -> AttentionNeeds:
    """What a small decoder on the CPU needs, but for `changes`: to the needs, or to their kind."""
    needs: dict[str, Any] = {
        "device": "cpu",
        "dtype": torch.float32,
        "block_size": 4,
    } | dict(zip(("num_heads", "num_kv_heads", "head_dim"), heads, strict=True))
    of_kind = {key: changes.pop(key) for key in list(changes) if key in _KIND}
    needs |= changes
    kind = {"causal": of_kind.pop("paged", True), "scale": needs["head_dim"] ** -0.5} | of_kind
    return AttentionNeeds(kind=AttentionKind(**kind), **needs)


_KIND = {"paged", *AttentionKind.__struct_fields__} - {"num_kv_heads", "head_dim"}
"""`paged` stands for `causal`. The needs say themselves what heads there are."""


class Problem:
    """A step of rows (cached tokens, queries), with every context's keys and values.

    Rows of `groups` (first row, rows, prefix tokens) begin with the first one's blocks. Cache slots
    of no row hold `unused`: NaN unless told, so that reading one would show. For a cache in FP8,
    heads of keys and values are numbers of it, and of very different sizes.
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
        if want.fp8_cache:
            contexts = [in_fp8(context, random_numbers) for context in contexts]
        self.row_keys, self.row_values = contexts[: len(rows)], contexts[len(rows) :]
        self.sinks: torch.Tensor | None = None
        if want.kind.sinks:
            scores = torch.randn(want.num_heads, generator=random_numbers)
            self.sinks = (2 * scores).to(want.device)
        self.tables = _random_tables(
            [-(-(start + queries) // want.block_size) for start, queries in rows]
        )
        for first, members, prefix in groups:
            for member in range(first + 1, first + members):
                self._share(first, member, prefix)
        step = paged_step(rows, self.tables, want.block_size, want.device)
        known = np.array(groups, np.int32).reshape(-1, 3)
        self.step = dataclasses.replace(step, groups=known)

    def solve(self, backend: AttentionBackend) -> torch.Tensor:
        """A backend's answer, [T, H, D]. Only earlier tokens are in the cache beforehand."""
        plan, cache, qkv = backend.plan_paged(self.step), self.cache(), self.qkv
        backend.write_kv(qkv, cache, self.step.kv_indices)
        return backend.attend_paged(qkv, cache, plan, sinks=self.sinks)

    def cache(self, *, filled: bool = False) -> LayerCache:
        """The earlier tokens of every row in its blocks; if `filled`, the step's own, too."""
        keys, values = (
            self._cached(contexts, filled) for contexts in (self.row_keys, self.row_values)
        )
        if not self.want.fp8_cache:
            return LayerCache(keys, values)
        numbers, scales = zip(
            *(quantized(part.flatten(0, 1)) for part in (keys, values)), strict=True
        )
        by_block = packed(*scales).view(keys.shape[:3]).transpose(1, 2).contiguous()
        return LayerCache(*(part.view(keys.shape) for part in numbers), scales=by_block)

    @property
    def qkv(self) -> QKV:
        """Of the step's tokens, as the packed projection leaves them: none is contiguous."""
        new = [
            torch.cat(
                [context[start:] for (start, _), context in zip(self.rows, kept, strict=True)]
            )
            for kept in (self.row_keys, self.row_values)
        ]
        return split_qkv(torch.cat([self.queries, *new], dim=1), self.want)

    @property
    def step_rows(self) -> StepRows:
        """The step's rows as the host has them."""
        step, cached = self.step, np.array([start for start, _ in self.rows], np.int32)
        rows = StepRows.over(step.slots.cpu().numpy(), step.query_lens, cached)
        return rows._replace(groups=step.groups)

    def _share(self, first: int, member: int, prefix: int) -> None:
        whole = prefix // self.want.block_size
        self.tables[member][:whole] = self.tables[first][:whole]
        for contexts in (self.row_keys, self.row_values):
            contexts[member][:prefix] = contexts[first][:prefix]

    def _cached(self, contexts: list[torch.Tensor], filled: bool) -> torch.Tensor:
        want, size = self.want, self.want.block_size
        blocks = max(max(table) for table in self.tables) + 1
        shape = (blocks * size, want.num_kv_heads, want.head_dim)
        slots = torch.full(shape, self._unused, dtype=want.dtype, device=want.device)
        for (start, _), table, context in zip(self.rows, self.tables, contexts, strict=True):
            known = context if filled else context[:start]
            places = torch.arange(len(known))
            own = torch.tensor(table)[places // size] * size + places % size
            slots[own.to(want.device)] = known
        return slots.view(blocks, size, *shape[1:])


def in_fp8(heads: torch.Tensor, random_numbers: torch.Generator) -> torch.Tensor:
    """`heads` [T, H, D], each times 2 ** -12 to 1, rounded to FP8."""
    powers = torch.randint(-12, 1, heads.shape[:2], generator=random_numbers).to(heads.device)
    return dequantized(*quantized(torch.ldexp(heads.float(), powers[..., None])), heads.dtype)


class PackedProblem:
    """A step of whole texts, with any position bias of their heads, or any vectors of distances."""

    def __init__(
        self,
        lengths: Sequence[int],
        want: AttentionNeeds,
        *,
        bias: torch.Tensor | None = None,
        vectors: DistanceVectors | None = None,
    ) -> None:
        self.lengths, self.want, self.bias, self.vectors = lengths, want, bias, vectors
        step = encoder_step([[0] * length for length in lengths])
        self.step = PackedStep.of(step, torch.device(want.device))
        shape = (sum(lengths), want.num_heads + 2 * want.num_kv_heads, want.head_dim)
        self.packed = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        self.packed = self.packed.to(want.device, want.dtype)

    @property
    def qkv(self) -> QKV:
        """Slices of `packed`."""
        return split_qkv(self.packed, self.want)

    def solve(self, backend: AttentionBackend) -> torch.Tensor:
        """A backend's answer, [T, H, D]."""
        plan = backend.plan_packed(self.step, self.bias)
        if self.vectors is not None:
            return backend.attend_disentangled(self.qkv, plan, self.vectors)
        return backend.attend_packed(self.qkv, plan)


def split_qkv(packed: torch.Tensor, want: AttentionNeeds) -> QKV:
    """Queries, keys and values of [T, H + 2 Hkv, D]."""
    return QKV(*packed.split([want.num_heads, want.num_kv_heads, want.num_kv_heads], dim=1))


def paged_step(
    rows: Sequence[tuple[int, int]], tables: Sequence[list[int]], block_size: int, device: str
) -> PagedStep:
    """A decoder's step of rows (cached tokens, queries) in the blocks of `tables`, padded to four
    tokens."""
    width = max(map(len, tables))
    places = [range(start, start + queries) for start, queries in rows]
    positions = [place for own in places for place in own]
    padding = [0] * (4 - len(positions))
    lens, contexts = [len(own) for own in places], [own.stop for own in places]

    def int32(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return PagedStep(
        tokens=torch.tensor([0] * len(positions + padding), device=device),
        positions=torch.tensor(positions + padding, device=device),
        kv_indices=torch.tensor(
            [
                table[place // block_size] * block_size + place % block_size
                for table, own in zip(tables, places, strict=True)
                for place in own
            ],
            device=device,
        ),
        # Slots in reverse: a backend that takes a row's number for its slot reads another's blocks.
        block_tables=int32([(table + [0] * width)[:width] for table in tables[::-1]]),
        slots=int32(range(len(rows))).flip(0),
        query_starts=int32([0, *np.cumsum(lens)]),
        context_lens=int32(contexts),
        query_lens=np.array(lens, np.int32),
        contexts=np.array(contexts, np.int32),
    )


def _random_tables(counts: list[int]) -> list[list[int]]:
    free = random.Random(1).sample(range(1, sum(counts) + 2), sum(counts))
    return [[free.pop() for _ in range(count)] for count in counts]
