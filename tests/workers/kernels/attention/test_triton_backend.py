"""The backend of our own kernels against the control group, step by step."""

import random

import numpy as np
import pytest
import torch

from tests.workers.attention_problems import attention_needs
from tests.workers.kernels.paged_rows import Heads, PagedRows, assert_attended
from workers.attention.backends.naive import NaiveBackend
from workers.attention.backends.triton import TritonBackend
from workers.attention.base import QKV, AttentionBackend, AttentionNeeds, LayerCache
from workers.contract.messages import EncodeStep
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep

PAGE = 16
STEPS = {
    "decode": [(30, 1), (0, 1), (70, 1)],
    "prompts": [(0, 9), (0, 17)],
    "decode_then_chunks": [(30, 1), (16, 1), (5, 20), (0, 7)],
    "one_far_longer": [(4600, 1), *((9, 1) for _ in range(16))],
    "any_order": [(0, 5), (31, 1), (3, 18), (15, 1), (0, 1)],
}
"""Rows of a step: (cached tokens, queries)"""


def needs(rows: PagedRows, *, paged: bool) -> AttentionNeeds:
    return attention_needs(
        paged=paged,
        device=rows.queries.device.type,
        dtype=rows.queries.dtype,
        num_heads=rows.heads.queries,
        num_kv_heads=rows.heads.keys,
        head_dim=rows.heads.size,
        block_size=PAGE,
    )


def paged_step(rows: PagedRows) -> PagedStep:
    unread = torch.empty(0, device=rows.queries.device)
    return PagedStep(
        tokens=unread,
        positions=unread,
        kv_indices=rows.kv_indices,
        block_tables=rows.block_tables,
        slots=rows.slots,
        query_starts=rows.query_starts,
        context_lens=rows.context_lens,
        query_lens=np.array([count for _, count in rows.rows], np.int32),
        contexts=np.array([cached + count for cached, count in rows.rows], np.int32),
    )


def packed_step(rows: PagedRows) -> PackedStep:
    lens = np.array([count for _, count in rows.rows], np.int32)
    message = EncodeStep(step=0, tokens=bytes(4 * lens.sum()), query_lens=lens.tobytes())
    return PackedStep.of(message, rows.queries.device)


def solve(backend: AttentionBackend, rows: PagedRows, *, paged: bool) -> torch.Tensor:
    """What the backend makes of the step; its new keys and values are not in the cache before."""
    qkv = QKV(rows.queries, rows.new_keys, rows.new_values)
    if not paged:
        return backend.attend_packed(qkv, backend.plan_packed(packed_step(rows)))
    plan = backend.plan_paged(paged_step(rows))
    cache = LayerCache(rows.keys.clone(), rows.values.clone())
    for blocks in (cache.keys, cache.values):
        blocks.flatten(0, 1)[rows.kv_indices] = torch.nan
    backend.write_kv(qkv, cache, rows.kv_indices)
    return backend.attend_paged(qkv, cache, plan)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_paged(step: list[tuple[int, int]], device: torch.device) -> None:
    rows = PagedRows(step, Heads(4, 2, 64), PAGE, torch.float16, device)
    want = needs(rows, paged=True)
    naive = solve(NaiveBackend(want), rows, paged=True)
    assert_attended(solve(TritonBackend(want), rows, paged=True), naive.double(), torch.float16)


def test_random_steps(device: torch.device) -> None:
    draw = random.Random(5)
    for _ in range(5):
        step = [
            (draw.choice([0, draw.randrange(70)]), draw.choice([1, 1, draw.randrange(1, 24)]))
            for _ in range(draw.randrange(1, 6))
        ]
        heads = draw.choice([Heads(2, 2, 64), Heads(4, 1, 80), Heads(3, 1, 96)])
        rows = PagedRows(step, heads, PAGE, torch.float16, device)
        want = needs(rows, paged=True)
        naive = solve(NaiveBackend(want), rows, paged=True)
        assert_attended(solve(TritonBackend(want), rows, paged=True), naive.double(), torch.float16)


def test_bidirectional(dot_dtype: torch.dtype, device: torch.device) -> None:
    rows = PagedRows([(0, 20), (0, 1), (0, 16)], Heads(2, 2, 64), PAGE, dot_dtype, device)
    want = needs(rows, paged=False)
    naive = solve(NaiveBackend(want), rows, paged=False)
    assert_attended(solve(TritonBackend(want), rows, paged=False), naive.double(), dot_dtype)
