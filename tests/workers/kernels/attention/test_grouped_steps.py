"""Steps whose rows share prefixes, by the backend of our own kernels."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.kernels.attention.test_triton_backend import needs, paged_step
from tests.workers.kernels.grouped_rows import Group, GroupedRows
from tests.workers.kernels.paged_rows import Heads, assert_attended
from workers.attention import prefix_tiles
from workers.attention.backends.flash_attn import FlashAttention4Backend
from workers.attention.backends.triton import TritonBackend
from workers.attention.base import QKV, LayerCache
from workers.step.paged_step import PagedStep

PAGE = 16
DECODES = [Group(48, [(0, 1), (15, 1), (70, 1)]), Group(0, [(20, 1)]), Group(16, [(3, 1)] * 9)]
CHUNKS = [Group(64, [(0, 2), (9, 3), (16, 1)]), Group(32, [(0, 40), (7, 30)]), Group(0, [(5, 9)])]
STEPS = {"decodes": DECODES, "chunks": CHUNKS, "both": [*DECODES, *CHUNKS]}


@pytest.fixture(autouse=True)
def _any_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefixes of a test are short."""
    monkeypatch.setattr(prefix_tiles, "PREFIX_MIN_SAVED", 1)
    monkeypatch.setattr(prefix_tiles, "PREFIX_MIN_TOKENS", 1)
    monkeypatch.setattr(prefix_tiles, "PREFIX_MIN_PART", 16)


def grouped_step(rows: GroupedRows) -> PagedStep:
    groups = [
        (first, len(group.rows), group.prefix)
        for first, group in zip(rows.first_rows, rows.groups, strict=True)
        if group.prefix
    ]
    return replace(paged_step(rows), groups=np.array(groups, np.int32))


@pytest.mark.parametrize("heads", [Heads(4, 2, 64), Heads(4, 4, 32)], ids=str)
@pytest.mark.parametrize("groups", STEPS.values(), ids=STEPS)
def test_steps(
    groups: list[Group],
    heads: Heads,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = GroupedRows(groups, heads, PAGE, torch.float16, device)
    backend = TritonBackend(needs(rows, paged=True))
    attended: list[int] = []
    real = backend._attend_prefixes

    def counted(*args: Any) -> None:
        attended.append(len(args[5]))
        real(*args)

    monkeypatch.setattr(backend, "_attend_prefixes", counted)
    plan = backend.plan_paged(grouped_step(rows))
    cache = LayerCache(rows.keys, rows.values)
    out = backend.attend_paged(QKV(rows.queries, rows.queries, rows.queries), cache, plan)
    assert_attended(out, rows.by_definition(), torch.float16)
    assert len(attended) == 1


def test_decode_rows_of_flash_attention(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go to our own kernels, whatever the library."""
    library = ModuleType("flash_attn.cute.interface")
    vars(library)["_flash_attn_fwd"] = None
    monkeypatch.setitem(sys.modules, library.__name__, library)
    rows = GroupedRows(DECODES, Heads(4, 2, 64), PAGE, torch.float16, device)
    backend = FlashAttention4Backend(needs(rows, paged=True))
    plan = backend.plan_paged(grouped_step(rows))
    assert plan.prefixes is not None
    cache = LayerCache(rows.keys, rows.values)
    out = backend.attend_paged(QKV(rows.queries, rows.queries, rows.queries), cache, plan)
    assert_attended(out, rows.by_definition(), torch.float16)


def test_a_group_that_begins_with_single_tokens(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of own parts, the first of which look like decode rows: these alone share."""
    library = ModuleType("flash_attn.cute.interface")
    vars(library)["_flash_attn_fwd"] = None
    monkeypatch.setitem(sys.modules, library.__name__, library)
    groups = [Group(48, [(0, 1), (2, 1), (5, 1), (1, 4), (0, 9)])]
    rows = GroupedRows(groups, Heads(4, 2, 64), PAGE, torch.float16, device)
    plan = FlashAttention4Backend(needs(rows, paged=True)).plan_paged(grouped_step(rows))
    assert plan.prefixes is not None
    assert plan.prefixes.parts.starts.tolist() == [48, 48, 48]


def test_windows_know_no_groups(device: torch.device) -> None:
    rows = GroupedRows(DECODES, Heads(2, 1, 32), PAGE, torch.float16, device)
    want = needs(rows, paged=True)
    windowed = replace(want, kind=want.kind.__class__(causal=True, scale=1.0, window=64))
    assert TritonBackend(windowed).plan_paged(grouped_step(rows)).prefixes is None
