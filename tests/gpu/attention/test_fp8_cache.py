"""Attention over keys and values in FP8 on the GPU, and needles in up to 131,072 tokens."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.attention.test_attention import (
    BLOCK_SIZES,
    HEADS,
    KIND_HEADS,
    KINDS,
    WINDOW,
    compare,
    needs,
    random_rows,
)
from tests.gpu.attention.test_prefix_groups import close, replayed, steps
from tests.workers.attention.reference import solution
from tests.workers.attention_problems import Problem
from tests.workers.inline_engine import Way
from tests.workers.kernels.grouped_rows import grouped
from tests.workers.models.needle import NEEDLES, found, save_induction_llama
from workers.attention.backends.naive import NaiveBackend
from workers.attention.backends.triton import TritonBackend

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

LLAMA_8B = (32, 8, 128, torch.bfloat16)
BACKENDS = ["triton", "sdpa", "flash_attn4 with a scratch"]


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("name", BACKENDS)
def test_random_steps(name: str, heads: tuple[int, int, int, torch.dtype], block_size: int) -> None:
    draw, want = random.Random(block_size), needs(heads, block_size=block_size, fp8_cache=True)
    for seed in range(6):
        compare(name, random_rows(draw, block_size), want, seed)


@pytest.mark.parametrize(
    "rows",
    [[(0, 1)] * 300, [(0, 3)] * 300, [(3000, 1), (2, 1), (9000, 1)], [(4000, 70), (0, 300)]],
    ids=["many", "many_prompts", "far_decodes", "far_chunk"],
)
@pytest.mark.parametrize("name", BACKENDS)
def test_steps_of_every_kind(name: str, rows: list[tuple[int, int]]) -> None:
    compare(name, rows, needs(LLAMA_8B, block_size=128, fp8_cache=True), seed=0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("heads", KIND_HEADS, ids=str)
@pytest.mark.parametrize("name", BACKENDS)
def test_kinds(name: str, heads: tuple[int, int, int, torch.dtype], kind: dict[str, Any]) -> None:
    rows = [(WINDOW - 1, 1), (900, 1), (0, WINDOW + 1), (500, 300), (WINDOW - 1, 2)]
    compare(name, rows, needs(heads, fp8_cache=True, **kind), seed=0)


@pytest.mark.parametrize("page", [16, 128])
@pytest.mark.parametrize("step", steps(16))
def test_shared_prefixes(step: str, page: int) -> None:
    problem = grouped(steps(page)[step], needs(LLAMA_8B, block_size=page, fp8_cache=True))
    backend = TritonBackend(problem.want)
    with torch.inference_mode():
        plan = backend.plan_paged(problem.step)
        close(
            backend.attend_paged(problem.qkv, problem.cache(filled=True), plan), solution(problem)
        )


@pytest.mark.parametrize("kind", [{}, {"window": WINDOW}], ids=str)
def test_a_graph_of_decoding_is_right_for_other_lengths(kind: dict[str, Any]) -> None:
    want = needs(LLAMA_8B, fp8_cache=True, **kind)
    problem = Problem([(900, 1), (70, 1), (33, 1), (16, 1)], want)
    backend, control = TritonBackend(want), NaiveBackend(want)
    cache, qkv, step = problem.cache(), problem.qkv, problem.step
    out = torch.empty_like(problem.queries)

    def attend() -> None:
        backend.write_kv(qkv, cache, step.kv_indices)
        backend.attend_paged(qkv, cache, backend.plan_paged(step), out)

    with torch.inference_mode():
        graph = replayed(attend)
        for contexts in ([901, 71, 34, 17], [1, 2, 16, 17], [512, 70, 1, 15]):
            step.context_lens.copy_(torch.tensor(contexts, dtype=torch.int32))
            graph.replay()
            other = replace(step, contexts=np.array(contexts, np.int32))
            expected = control.attend_paged(qkv, cache, control.plan_paged(other))
            torch.testing.assert_close(out.float(), expected.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("length", [8192, 32_768, 65_536, 131_072])
def test_needles_are_found_in_fp8(tmp_path: Path, length: int) -> None:
    save_induction_llama(tmp_path, length)
    blocks = (length + 2 * NEEDLES) // 128 + 2
    way = Way(
        device="cuda",
        dtype="bfloat16",
        backend="triton",
        graphs=True,
        block_size=128,
        num_blocks=blocks,
        max_running=4,
        max_step_tokens=8192,
    )
    exact, rounded = (
        sum(found(tmp_path, replace(way, kv_cache_dtype=name), length, seed) for seed in range(4))
        / 4
        for name in ("auto", "fp8_e4m3")
    )
    print(f"needles in {length:,} tokens: {exact:.1%}, in FP8 {rounded:.1%}")
    assert exact > 0.95
    assert rounded >= exact - 0.01
