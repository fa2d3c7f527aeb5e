"""Attention over the static rows of a captured step: the same result, whatever rows are unused."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.workers.kernels.attention.test_triton_backend import PAGE, needs
from tests.workers.kernels.paged_rows import Heads, PagedRows, assert_attended
from tests.workers.step_maker import int32
from workers.attention.backends import triton
from workers.attention.backends.triton import TritonBackend
from workers.attention.base import QKV, LayerCache
from workers.contract.messages import DecodeStep
from workers.graphs.static_inputs import StaticInputs, StaticRows
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


@pytest.fixture(autouse=True)
def _pageable(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    """Memory is pinned only for a GPU."""
    if device.type == "cpu":
        real = torch.empty

        def empty(*size: int, pin_memory: bool = False, **options) -> torch.Tensor:
            return real(*size, **options)

        monkeypatch.setattr(torch, "empty", empty)


def host_rows(paged: PagedRows) -> StepRows:
    cached, counts = zip(*paged.rows, strict=True)
    return StepRows.of(
        DecodeStep(
            step=0,
            tokens=bytes(4 * sum(counts)),
            query_lens=int32(list(counts)),
            slots=int32(paged.slots.tolist()),
            sample=bytes(len(counts)),
            starts=int32(list(cached)),
        )
    )


def loaded(paged: PagedRows) -> StaticInputs:
    rows = host_rows(paged)
    table = SlotTable(
        len(paged.rows) + 1, paged.block_tables.shape[1], PAGE, 0, paged.queries.device
    )
    table.device_tables[: len(paged.block_tables)] = paged.block_tables
    inputs = StaticInputs(SIZE, table, 0, StaticRows(DECODE_ROWS, CHUNKS, 128))
    assert inputs.has_room_for(rows)
    nothing = np.zeros(rows.total, np.int32)
    inputs.load(nothing, nothing, rows)
    return inputs


def in_order(works: list[Callable[[], object]]) -> None:
    for work in works:
        work()


def in_reverse(works: list[Callable[[], object]]) -> None:
    in_order(works[::-1])


@pytest.mark.parametrize("order", [in_order, in_reverse])
@pytest.mark.parametrize("rows", STEPS.values(), ids=STEPS)
def test_attention_over_static_rows(
    rows: list[tuple[int, int]],
    order: Callable[[list[Callable[[], object]]], None],
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Captured, the kernels run side by side: none may write what is another's."""
    monkeypatch.setattr(triton, "concurrently", order)
    paged = PagedRows(rows, Heads(4, 2, 64), PAGE, torch.float16, device)
    static = loaded(paged).as_step_of_rows()
    queries = torch.zeros(SIZE, *paged.queries.shape[1:], dtype=torch.float16, device=device)
    total = len(paged.queries)
    queries[:total] = paged.queries
    backend = TritonBackend(needs(paged, paged=True))
    cache = LayerCache(paged.keys, paged.values)
    out = torch.full_like(queries, torch.nan)
    qkv = QKV(queries, queries, queries)
    backend.attend_paged(qkv, cache, backend.plan_paged(static), out)
    assert_attended(out[:total], paged.by_definition(), torch.float16)


def test_steps_without_room(device: torch.device) -> None:
    paged = PagedRows([(0, 1)] * 3 + [(0, 2)], Heads(1, 1, 16), PAGE, torch.float16, device)
    rows = host_rows(paged)
    assert StaticRows(3, 1, 128).has_room_for(rows)
    assert not StaticRows(2, 1, 128).has_room_for(rows)
    assert not StaticRows(3, 0, 128).has_room_for(rows)
    rows.contexts[1] = 4097
    assert not StaticRows(3, 1, 128).has_room_for(rows)
    rows.contexts[1], rows.contexts[3] = 4096, 4097
    assert StaticRows(3, 1, 128).has_room_for(rows)
