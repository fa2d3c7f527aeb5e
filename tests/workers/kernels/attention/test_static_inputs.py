"""Attention over the inputs of captured steps: the same result, whatever of them is unused."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.attention.reference import assert_solved
from tests.workers.attention_problems import PackedProblem, Problem, attention_needs, split_qkv
from tests.workers.kernels.attention.test_triton_backend import DECODES, needs
from tests.workers.kernels.cases import cases
from tests.workers.kernels.grouped_rows import Group, grouped
from workers.attention import prefix_tiles
from workers.attention.backends import triton
from workers.attention.backends.triton import TritonBackend
from workers.attention.base import QKV
from workers.graphs.stage_graphs import StageGraphs
from workers.graphs.static_inputs import StaticInputs, StaticPrefixes, StaticRows
from workers.graphs.text_graphs import StaticTexts
from workers.stage.model_runner import step_of_texts
from workers.step.packed_step import PackedStep
from workers.step.rows import StepRows
from workers.step.slot_table import SlotTable

SIZE, DECODE_ROWS, CHUNKS = 48, 4, 3
STEPS = {
    "full": [(30, 1), (0, 1), (70, 1), (9, 1), (5, 20), (0, 7), (33, 9)],
    "singles_and_a_chunk": [(30, 1), (16, 1), (0, 31)],
    "only_chunks": [(0, 9), (0, 17)],
    "singles_behind_a_chunk": [(30, 1), (0, 5), (31, 1), (3, 18)],
    "a_short_chunk": [(30, 1), (0, 2)],
}
GROUPED_SIZE = 24
GROUPS = {
    "groups": DECODES,
    "long_prefix": [Group(0, [(2, 1)]), Group(320, [(own, 1) for own in range(8)])],
    "none": [Group(0, [(20, 1)] * 5)],
    "full": [Group(32, [(own, 1) for own in range(GROUPED_SIZE)])],
}

pytestmark = pytest.mark.usefixtures("pinned_anywhere")

LAST = 1
"""The number of the block table in which the problem is, behind one that is all zeros."""


def slot_table(problem: Problem, slots: int) -> SlotTable:
    tables, page = problem.step.block_tables, problem.want.block_size
    width = tables.shape[1]
    table = SlotTable(slots, width, page, 0, tables.device, table_parts=(1,) * (LAST + 1))
    table.device_tables[: len(tables), LAST * width :] = tables
    return table


def load(inputs: StaticInputs, rows: StepRows) -> None:
    nothing = np.zeros(rows.total, np.int32)
    inputs.load(nothing, np.stack([nothing] * (LAST + 1)), rows)


def padded_queries(problem: Problem, size: int) -> torch.Tensor:
    queries = problem.queries.new_zeros(size, *problem.queries.shape[1:])
    queries[: len(problem.queries)] = problem.queries
    return queries


@pytest.mark.parametrize(
    ("order", "rows"),
    cases(
        {"in_order": 1, "in_reverse": -1},
        STEPS,
        usual={"in_order-full", "in_order-only_chunks", "in_reverse-singles_behind_a_chunk"},
    ),
)
def test_static_rows(
    rows: list[tuple[int, int]], order: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured, the kernels run side by side: none may write what is another's."""

    def one_by_one(works: list[Callable[[], object]]) -> None:
        for work in works[::order]:
            work()

    monkeypatch.setattr(triton, "concurrently", one_by_one)
    problem = Problem(rows, needs(device))
    table = slot_table(problem, len(rows) + 1)
    inputs = StaticInputs(SIZE, table, StaticRows(DECODE_ROWS, CHUNKS, 128))
    assert inputs.has_room_for(problem.step_rows)
    load(inputs, problem.step_rows)
    queries, backend = padded_queries(problem, SIZE), TritonBackend(problem.want)
    out = torch.full_like(queries, torch.nan)
    plan = backend.plan_paged(inputs.as_step_of_rows().of_table(LAST))
    qkv = QKV(queries, queries, queries)
    backend.attend_paged(qkv, problem.cache(filled=True), plan, out)
    assert_solved(out[: len(problem.queries)], problem)


def test_steps_without_room(device: torch.device) -> None:
    problem = Problem([(0, 1)] * 3 + [(0, 2)], needs(device, (1, 1, 16)))
    rows = problem.step_rows
    assert StaticRows(3, 1, 128).has_room_for(rows)
    assert not StaticRows(2, 1, 128).has_room_for(rows)
    assert not StaticRows(3, 0, 128).has_room_for(rows)
    rows.contexts[1] = 4097
    assert not StaticRows(3, 1, 128).has_room_for(rows)
    rows.contexts[1], rows.contexts[3] = 4096, 4097
    assert StaticRows(3, 1, 128).has_room_for(rows)


def inputs_with_prefixes(problem: Problem, backend: TritonBackend) -> StaticInputs:
    assert backend.prefix_tiler is not None
    prefixes = StaticPrefixes(GROUPED_SIZE, backend.prefix_tiler)
    table = slot_table(problem, GROUPED_SIZE + 1)
    return StaticInputs(GROUPED_SIZE, table, prefixes=prefixes)


@pytest.mark.usefixtures("any_saving")
@pytest.mark.parametrize("groups", cases(GROUPS, usual={"groups", "none"}))
def test_static_prefixes(groups: list[Group], device: torch.device) -> None:
    """The step before was full: nothing of it is left."""
    problem = grouped(groups, needs(device))
    backend = TritonBackend(problem.want)
    inputs = inputs_with_prefixes(problem, backend)
    for step in (grouped(GROUPS["full"], problem.want), problem):
        load(inputs, step.step_rows)
    queries, cache = padded_queries(problem, GROUPED_SIZE), problem.cache(filled=True)
    plan = backend.plan_paged(inputs.step.of_table(LAST))
    assert plan.prefixes is not None
    # Padding has the padding slot, whose table is zeros.
    cache.keys[0].nan_to_num_()
    cache.values[0].nan_to_num_()
    out = backend.attend_paged(QKV(queries, queries, queries), cache, plan)
    assert_solved(out[: len(problem.queries)], problem)


@pytest.mark.usefixtures("any_saving")
def test_which_steps_take_a_graph_with_prefixes(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with groups that are worth it; the skew that counts is that of own parts."""
    many = [Group(256, [(own, 1) for own in range(18)])]
    problem = grouped(many, needs(device, (2, 1, 16)))
    inputs = inputs_with_prefixes(problem, TritonBackend(problem.want))
    plain: Any = SimpleNamespace(inputs=SimpleNamespace(has_room_for=lambda _: True))
    with_prefixes: Any = SimpleNamespace(inputs=inputs)
    graphs, rows = StageGraphs(decode=[plain], grouped=[with_prefixes]), problem.step_rows
    assert graphs.select(rows) is with_prefixes
    assert graphs.select(rows._replace(groups=rows.groups[:0])) is plain
    skewed = problem.step_rows
    skewed.contexts[3] = 9000
    assert graphs.select(skewed) is None
    monkeypatch.setattr(prefix_tiles, "PREFIX_MIN_SAVED", 1 << 14)
    assert graphs.select(problem.step_rows) is plain


def test_steps_are_timed_with_rows_that_go_to_experts_of_their_own(device: torch.device) -> None:
    problem = grouped(GROUPS["groups"], needs(device))
    inputs = inputs_with_prefixes(problem, TritonBackend(problem.want))
    assert len(inputs.tokens.unique()) == min(8, GROUPED_SIZE)
    load(inputs, problem.step_rows)
    assert not inputs.tokens[problem.step_rows.total :].any()


@pytest.mark.parametrize("window", [None, 9])
def test_static_texts(window: int | None, device: torch.device) -> None:
    """The step before was full, and what is behind the texts is not read."""
    want = attention_needs((2, 2, 16), window=window, paged=False, device=device.type)
    problem, backend = PackedProblem([7, 1, 33, 16], want), TritonBackend(want)
    inputs = StaticTexts(96, 12, (), device, types=False)
    for lens in ([40, 40, 16], problem.lengths):
        PackedStep.of(step_of_texts(lens), device, (), inputs.place)
    qkv = torch.full((96, *problem.packed.shape[1:]), torch.nan, device=device)
    qkv[: len(problem.packed)] = problem.packed
    attended = backend.attend_packed(split_qkv(qkv, want), backend.plan_packed(inputs.step))
    assert torch.equal(attended[: len(problem.packed)], problem.solve(backend))
