"""A step's rows over a paged cache: random queries, keys and values, and the right answer."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch

from workers.contract.model_config import AttentionKind


class Heads(NamedTuple):
    """Query heads, KV heads, head size."""

    queries: int
    keys: int
    size: int

    @property
    def kind(self) -> AttentionKind:
        """Causal, without window and softcap."""
        return AttentionKind(causal=True, scale=self.size**-0.5)


SHAPES = [
    Heads(4, 4, 64),
    Heads(4, 1, 80),
    pytest.param(Heads(6, 2, 96), marks=pytest.mark.long),
    pytest.param(Heads(7, 1, 128), marks=pytest.mark.long),
    Heads(2, 1, 256),
    Heads(20, 1, 16),
]
_NOWHERE = 2**28
"""A block id that no cache has."""


class PagedRows:
    """Rows of (cached tokens, queries) each, in random blocks of a cache.

    Every slot of the cache that belongs to no row is NaN, and every entry of a table behind a row's
    blocks is no block at all: to read either shows. Rows have their slots in reverse order.
    """

    def __init__(
        self,
        rows: Sequence[tuple[int, int]],
        heads: Heads,
        page: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        numbers = torch.Generator().manual_seed(len(rows) + page)
        self.rows, self.heads = rows, heads
        contexts = [cached + count for cached, count in rows]

        def draw(tokens: int, count: int) -> torch.Tensor:
            return torch.randn(tokens, count, heads.size, generator=numbers).to(device, dtype)

        # As the packed projection leaves them: neither queries nor new keys are contiguous.
        self.packed = draw(sum(count for _, count in rows), heads.queries + 2 * heads.keys)
        widths = (heads.queries, heads.keys, heads.keys)
        self.queries, self.new_keys, self.new_values = self.packed.split(widths, dim=1)

        blocks = _random_blocks(contexts, page)
        shape = (sum(map(len, blocks)) + 3, page, heads.keys, heads.size)
        self.keys, self.values = torch.full((2, *shape), torch.nan, dtype=dtype, device=device)
        self.row_keys: list[torch.Tensor] = []
        self.row_values: list[torch.Tensor] = []
        kv_indices: list[torch.Tensor] = []
        start = 0
        for (cached, queries), row_blocks in zip(rows, blocks, strict=True):
            indices = (row_blocks[:, None] * page + torch.arange(page)).flatten()
            indices = indices[: cached + queries].to(device)
            own = slice(start, start + queries)
            for cache, new, known in (
                (self.keys, self.new_keys, self.row_keys),
                (self.values, self.new_values, self.row_values),
            ):
                known.append(torch.cat((draw(cached, heads.keys), new[own])))
                cache.flatten(0, 1)[indices] = known[-1]
            kv_indices.append(indices[cached:])
            start += queries
        self.kv_indices = torch.cat(kv_indices)
        self.block_tables = _block_tables(blocks).to(device)
        self.slots = torch.arange(len(rows), 0, -1, dtype=torch.int32, device=device)
        self.context_lens = torch.tensor(contexts, dtype=torch.int32, device=device)
        starts = torch.tensor([0, *(queries for _, queries in rows)]).cumsum(0)
        self.query_starts = starts.to(device, torch.int32)

    def by_definition(self, *, causal: bool = True) -> torch.Tensor:
        """softmax(Q K^T / sqrt(D)) V in float64, row by row: [T, H, D]; 0 without keys."""
        group = self.heads.queries // self.heads.keys
        outputs: list[torch.Tensor] = []
        start = 0
        for (cached, count), keys, values in zip(
            self.rows, self.row_keys, self.row_values, strict=True
        ):
            own = self.queries[start : start + count].double()
            start += count
            wide_keys, wide_values = (
                known.double().repeat_interleave(group, dim=1) for known in (keys, values)
            )
            scores = torch.einsum("qhd,khd->hqk", own, wide_keys) / self.heads.size**0.5
            if causal:
                later = torch.arange(cached + count) > cached + torch.arange(count)[:, None]
                scores = scores.masked_fill(later.to(scores.device), -torch.inf)
            outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), wide_values))
        return torch.cat(outputs)


def _random_blocks(contexts: Sequence[int], page: int) -> list[torch.Tensor]:
    """The ids of each row's blocks, int64, out of three more than all rows need."""
    counts = [-(-context // page) for context in contexts]
    free = random.Random(page).sample(range(sum(counts) + 3), sum(counts))
    return [torch.tensor([free.pop() for _ in range(count)], dtype=torch.int64) for count in counts]


def _block_tables(blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tables by slot, int32: the last row's in slot 1, the first row's in the last slot."""
    widest = max(map(len, blocks), default=0)
    tables = torch.full((len(blocks) + 1, widest + 2), _NOWHERE, dtype=torch.int32)
    for slot, row_blocks in enumerate(reversed(blocks), 1):
        tables[slot, : len(row_blocks)] = row_blocks
    return tables


def assert_attended(got: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    """`got` is `exact` as far as `dtype` can tell: probabilities are rounded to it too."""
    assert got.dtype == dtype
    bound = 5e-6 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), exact, atol=bound, rtol=0)
