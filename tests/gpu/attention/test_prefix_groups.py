"""Prefixes that rows share, attended once, on the GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.attention.test_attention import IMPLEMENTATIONS
from tests.workers.attention_problems import attention_needs
from tests.workers.kernels.attention.test_grouped_steps import grouped_step
from tests.workers.kernels.attention.test_static_rows import host_rows
from tests.workers.kernels.grouped_rows import Group, GroupedRows
from tests.workers.kernels.paged_rows import Heads
from workers.attention.backend_selection import unmet_need
from workers.attention.base import QKV, AttentionBackend, LayerCache
from workers.contract.model_config import AttentionKind
from workers.graphs.static_inputs import StaticInputs, StaticPrefixes
from workers.kernels.attention import paged_decode, shared_prefix
from workers.step.slot_table import SlotTable

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DEVICE = torch.device("cuda")
SHARING = ["triton", "flash_attn4", "flash_attn3"]
HEADS = [Heads(32, 8, 128), Heads(8, 8, 64), Heads(6, 2, 96), Heads(8, 1, 128)]
LONG = 1 << 11


def steps(page: int) -> dict[str, list[Group]]:
    """Rows of groups: with lengths at the edges of pages and tiles."""
    own = [0, 1, 63, 64, 65, 127, 128, 129, 300]
    many = [Group(LONG, [(own[row % 9], 1) for row in range(16)]) for _ in range(8)]
    return {
        "decodes": [*many, Group(0, [(700, 1), (0, 1)]), Group(page, [(5, 1)] * 40)],
        "one_far_prefix": [Group(16384, [(own, 1) for own in range(16)])],
        "chunks": [Group(LONG, [(own, 3) for own in (0, 1, 200)] * 5), Group(0, [(0, 300)])],
        "both": [*many[:2], Group(LONG, [(0, 2)] * 20), Group(page, [(0, 200), (30, 170)])],
    }


def rows_of(groups: list[Group], heads: Heads, page: int) -> GroupedRows:
    rows = GroupedRows(groups, heads, page, torch.bfloat16, DEVICE)
    for cache in (rows.keys, rows.values):
        cache.nan_to_num_(0.0)  # FlashAttention 4 reads whole pages
    return rows


def built(name: str, heads: Heads, page: int) -> AttentionBackend:
    want = attention_needs(
        device="cuda",
        dtype=torch.bfloat16,
        num_heads=heads.queries,
        num_kv_heads=heads.keys,
        head_dim=heads.size,
        block_size=page,
    )
    implementation = IMPLEMENTATIONS[name]
    if why := unmet_need(implementation.capabilities, want):
        pytest.skip(f"{name}: {why}")
    return implementation(want)


def close(got: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), exact, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("page", [16, 128])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("step", steps(16))
@pytest.mark.parametrize("name", SHARING)
def test_steps(name: str, step: str, heads: Heads, page: int) -> None:
    rows, backend = rows_of(steps(page)[step], heads, page), built(name, heads, page)
    with torch.inference_mode():
        plan = backend.plan_paged(grouped_step(rows))
        cache = LayerCache(rows.keys, rows.values)
        qkv = QKV(rows.queries, rows.new_keys, rows.new_values)
        out = backend.attend_paged(qkv, cache, plan)
    close(out, rows.by_definition())


def replayed(launch: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """A graph of `launch`, which has run once before."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph


@pytest.mark.parametrize("name", SHARING[:2])
def test_one_graph_for_any_groups(name: str) -> None:
    heads, page, size = Heads(32, 8, 128), 128, 192
    every = [
        rows_of(groups, heads, page)
        for groups in (
            steps(page)["decodes"],
            [Group(0, [(40, 1)] * 9)],
            steps(page)["one_far_prefix"],
            [Group(LONG, [(row, 1) for row in range(100)]), Group(128, [(0, 1)] * 64)],
        )
    ]
    backend = built(name, heads, page)
    assert backend.prefix_tiler is not None
    blocks = max(len(rows.keys) for rows in every)
    width = max(rows.block_tables.shape[1] for rows in every)
    keys, values = torch.zeros(2, blocks, page, 8, 128, dtype=torch.bfloat16, device=DEVICE)
    table = SlotTable(size + 1, width, page, 0, DEVICE)
    static = StaticPrefixes(size, backend.prefix_tiler)
    inputs = StaticInputs(size, table, 0, prefixes=static)
    queries = torch.zeros(size, 32, 128, dtype=torch.bfloat16, device=DEVICE)
    out = torch.zeros_like(queries)

    def attend() -> None:
        plan = backend.plan_paged(inputs.as_decode_step())
        qkv = QKV(queries, queries, queries)
        backend.attend_paged(qkv, LayerCache(keys, values), plan, out)

    with torch.inference_mode():
        graph = replayed(attend)
        for rows in [*every, *every[::-1]]:
            total, shape = len(rows.queries), rows.block_tables.shape
            keys[: len(rows.keys)], values[: len(rows.values)] = rows.keys, rows.values
            table.device_tables[: shape[0], : shape[1]] = rows.block_tables.clamp(0, blocks - 1)
            queries[:total] = rows.queries
            nothing = np.zeros(total, np.int32)
            groups = grouped_step(rows).groups.reshape(-1, 3)
            inputs.load(nothing, nothing, host_rows(rows)._replace(groups=groups))
            graph.replay()
            close(out[:total], rows.by_definition())


def test_own_parts_that_overlap_the_prefixes_are_the_same() -> None:
    """Layer after layer, each of which writes the cache that the next launches read."""
    heads = Heads(32, 8, 128)
    rows = rows_of([Group(1920, [(250 + row, 1) for row in range(16)])] * 40, heads, 128)
    most = shared_prefix.tokens_a_tile(32, 8, 128, torch.bfloat16)
    tiles, parts = rows.tiles(most, 1), rows.parts(1)
    cache = rows.keys, rows.values, rows.block_tables, rows.slots
    kind, lens = AttentionKind(causal=True, scale=128**-0.5), rows.context_lens
    keys, values = rows.keys.clone(), rows.values.clone()

    def layers(outs: list[torch.Tensor], between: Callable[[], object]) -> None:
        rows.keys.copy_(keys)
        rows.values.copy_(values)
        for out in outs:
            rows.keys.mul_(0.99)
            rows.values.mul_(1.01)
            between()
            shared_prefix.attend(rows.queries, *cache, tiles, parts, kind)
            between()
            paged_decode.attend(rows.queries, *cache, lens, kind, out, prefix=parts)

    alone, overlapping = (
        [torch.empty_like(rows.queries.contiguous()) for _ in range(24)] for _ in range(2)
    )
    layers(alone, torch.cuda.synchronize)
    graph = replayed(lambda: layers(overlapping, lambda: None))
    for _ in range(20):
        graph.replay()
    for one, other in zip(alone, overlapping, strict=True):
        assert torch.equal(one, other)
