"""Prefixes that rows share, attended once, on the GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.attention.test_attention import built, needs
from tests.workers.attention.reference import solution
from tests.workers.attention_problems import Heads, Problem
from tests.workers.kernels.grouped_rows import Group, grouped, prefix_tiles, unwritten_parts
from workers.attention.base import QKV, LayerCache
from workers.graphs.static_inputs import StaticInputs, StaticPrefixes
from workers.kernels.attention import paged_decode, shared_prefix
from workers.step.slot_table import SlotTable

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DEVICE = torch.device("cuda")
SHARING = ["triton", "flash_attn4", "flash_attn3"]
HEADS = [(32, 8, 128), (8, 8, 64), (6, 2, 96), (8, 1, 128)]
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


def problem_of(groups: list[Group], heads: Heads, page: int) -> Problem:
    return grouped(groups, needs((*heads, torch.bfloat16), block_size=page))


def filled_cache(problem: Problem) -> LayerCache:
    """FlashAttention 4 reads whole pages: nothing in them is NaN."""
    cache = problem.cache(filled=True)
    cache.keys.nan_to_num_(0.0)
    cache.values.nan_to_num_(0.0)
    return cache


def close(got: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), exact, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("page", [16, 128])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("step", steps(16))
@pytest.mark.parametrize("name", SHARING)
def test_steps(name: str, step: str, heads: Heads, page: int) -> None:
    problem = problem_of(steps(page)[step], heads, page)
    backend = built(name, problem.want)
    with torch.inference_mode():
        plan = backend.plan_paged(problem.step)
        out = backend.attend_paged(problem.qkv, filled_cache(problem), plan)
    close(out, solution(problem))


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
    heads, page, size = (32, 8, 128), 128, 192
    every = [
        problem_of(groups, heads, page)
        for groups in (
            steps(page)["decodes"],
            [Group(0, [(40, 1)] * 9)],
            steps(page)["one_far_prefix"],
            [Group(LONG, [(row, 1) for row in range(100)]), Group(128, [(0, 1)] * 64)],
        )
    ]
    backend = built(name, every[0].want)
    assert backend.prefix_tiler is not None
    caches = [filled_cache(problem) for problem in every]
    blocks = max(len(cache.keys) for cache in caches)
    width = max(problem.step.block_tables.shape[1] for problem in every)
    keys, values = torch.zeros(2, blocks, page, 8, 128, dtype=torch.bfloat16, device=DEVICE)
    table = SlotTable(size + 1, width, page, 0, DEVICE)
    static = StaticPrefixes(size, backend.prefix_tiler)
    inputs = StaticInputs(size, table, prefixes=static)
    queries = torch.zeros(size, 32, 128, dtype=torch.bfloat16, device=DEVICE)
    out = torch.zeros_like(queries)

    def attend() -> None:
        plan = backend.plan_paged(inputs.step)
        qkv = QKV(queries, queries, queries)
        backend.attend_paged(qkv, LayerCache(keys, values), plan, out)

    with torch.inference_mode():
        graph = replayed(attend)
        cases = [*zip(every, caches, strict=True)]
        for problem, cache in [*cases, *cases[::-1]]:
            total, tables = len(problem.queries), problem.step.block_tables
            keys[: len(cache.keys)], values[: len(cache.values)] = cache.keys, cache.values
            table.device_tables[: tables.shape[0], : tables.shape[1]] = tables
            queries[:total] = problem.queries
            nothing = np.zeros(total, np.int32)
            inputs.load(nothing, nothing[None], problem.step_rows)
            graph.replay()
            close(out[:total], solution(problem))


def test_own_parts_that_overlap_the_prefixes_are_the_same() -> None:
    """Layer after layer, each of which writes the cache that the next launches read."""
    groups = [Group(1920, [(250 + row, 1) for row in range(16)])] * 40
    problem = problem_of(groups, (32, 8, 128), 128)
    tiles, parts = prefix_tiles(problem, 1), unwritten_parts(problem, 1)
    cache, before = filled_cache(problem), filled_cache(problem)
    queries, step, kind = problem.queries, problem.step, problem.want.kind
    paged = cache.keys, cache.values, step.block_tables, step.slots

    def layers(outs: list[torch.Tensor], between: Callable[[], object]) -> None:
        cache.keys.copy_(before.keys)
        cache.values.copy_(before.values)
        for out in outs:
            cache.keys.mul_(0.99)
            cache.values.mul_(1.01)
            between()
            shared_prefix.attend(queries, *paged, tiles, parts, kind)
            between()
            paged_decode.attend(queries, *paged, step.context_lens, kind, out, prefix=parts)

    alone, overlapping = ([torch.empty_like(queries) for _ in range(24)] for _ in range(2))
    layers(alone, torch.cuda.synchronize)
    graph = replayed(lambda: layers(overlapping, lambda: None))
    for _ in range(20):
        graph.replay()
    for one, other in zip(alone, overlapping, strict=True):
        assert torch.equal(one, other)
