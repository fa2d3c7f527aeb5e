"""Attention of a captured decode step with room for groups: the same, whatever groups it has."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.kernels.attention.test_grouped_steps import grouped_step
from tests.workers.kernels.attention.test_static_rows import host_rows
from tests.workers.kernels.attention.test_triton_backend import PAGE, needs
from tests.workers.kernels.grouped_rows import Group, GroupedRows
from tests.workers.kernels.paged_rows import Heads, assert_attended
from workers.attention import prefix_tiles
from workers.attention.backends.triton import TritonBackend
from workers.attention.base import QKV, LayerCache
from workers.graphs.stage_graphs import StageGraphs
from workers.graphs.static_inputs import StaticInputs, StaticPrefixes
from workers.step.rows import StepRows
from workers.step.slot_table import SlotTable

SIZE = 24
STEPS = {
    "groups": [Group(48, [(0, 1), (15, 1), (70, 1)]), Group(0, [(20, 1)]), Group(16, [(3, 1)] * 9)],
    "long_prefix": [Group(0, [(2, 1)]), Group(320, [(own, 1) for own in range(8)])],
    "none": [Group(0, [(20, 1)] * 5)],
    "full": [Group(32, [(own, 1) for own in range(SIZE)])],
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Prefixes of a test are short; memory is pinned only for a GPU."""
    monkeypatch.setattr(prefix_tiles, "PREFIX_MIN_SAVED", 1)
    monkeypatch.setattr(prefix_tiles, "PREFIX_MIN_TOKENS", 1)
    monkeypatch.setattr(prefix_tiles, "PREFIX_MIN_PART", 16)
    if device.type == "cpu":
        real = torch.empty

        def empty(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            return real(*size, **options)

        monkeypatch.setattr(torch, "empty", empty)


def grouped_rows(rows: GroupedRows) -> StepRows:
    return host_rows(rows)._replace(groups=grouped_step(rows).groups.reshape(-1, 3))


def static_inputs(rows: GroupedRows, backend: TritonBackend) -> StaticInputs:
    table = SlotTable(SIZE + 1, rows.block_tables.shape[1], PAGE, 0, rows.queries.device)
    table.device_tables[: len(rows.block_tables)] = rows.block_tables
    tiler = backend.prefix_tiler
    assert tiler is not None
    return StaticInputs(SIZE, table, 0, prefixes=StaticPrefixes(SIZE, tiler))


@pytest.mark.parametrize("step", STEPS)
def test_steps_one_after_another(step: str, device: torch.device) -> None:
    """The step before was full: nothing of it is left."""
    heads, nothing = Heads(4, 2, 64), np.zeros(SIZE, np.int32)
    before = GroupedRows(STEPS["full"], heads, PAGE, torch.float16, device)
    rows = GroupedRows(STEPS[step], heads, PAGE, torch.float16, device)
    backend, total = TritonBackend(needs(rows, paged=True)), len(rows.queries)
    inputs = static_inputs(rows, backend)
    inputs.load(nothing, nothing, grouped_rows(before))
    inputs.load(nothing[:total], nothing[:total], grouped_rows(rows))
    queries = torch.zeros(SIZE, *rows.queries.shape[1:], dtype=torch.float16, device=device)
    queries[:total] = rows.queries
    plan = backend.plan_paged(inputs.as_decode_step())
    assert plan.prefixes is not None
    cache = LayerCache(rows.keys, rows.values)
    # Padding has the padding slot, whose table is zeros.
    cache.keys[0].nan_to_num_()
    cache.values[0].nan_to_num_()
    out = backend.attend_paged(QKV(queries, queries, queries), cache, plan)
    assert_attended(out[:total], rows.by_definition(), torch.float16)


def test_which_steps_take_it(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with groups that are worth it; the skew that counts is that of own parts."""
    many = [Group(16 * PAGE, [(own, 1) for own in range(18)])]
    rows = GroupedRows(many, Heads(2, 1, 16), PAGE, torch.float16, device)
    inputs = static_inputs(rows, TritonBackend(needs(rows, paged=True)))
    plain: Any = SimpleNamespace(inputs=SimpleNamespace(has_room_for=lambda _: True))
    grouped: Any = SimpleNamespace(inputs=inputs)
    graphs = StageGraphs(decode=[plain], grouped=[grouped])
    assert graphs.select(grouped_rows(rows)) is grouped
    assert graphs.select(host_rows(rows)) is plain
    skewed = grouped_rows(rows)
    skewed.contexts[3] = 9000
    assert graphs.select(skewed) is None
    monkeypatch.setattr(prefix_tiles, "PREFIX_MIN_SAVED", 1 << 14)
    assert graphs.select(grouped_rows(rows)) is plain
