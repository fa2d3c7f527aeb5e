"""Every attention backend that is installed and fits, against the control group, on the GPU."""

import dataclasses
import logging
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.attention_problems import PackedProblem, Problem, attention_needs
from workers.attention.backend_selection import (
    implementations,
    select_backend,
    unmet_need,
)
from workers.attention.backends.naive import NaiveBackend
from workers.attention.base import AttentionBackend, AttentionNeeds
from workers.contract.attention_backends import AttentionBackendName
from workers.contract.model_config import PositionBias
from workers.device.choices import Choices

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

IMPLEMENTATIONS = {
    backend.label: backend
    for name in AttentionBackendName
    if name not in ("auto", "naive")
    for backend in implementations(name)
}
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 2e-5}
HEADS = [
    (8, 8, 64, torch.bfloat16),
    (4, 1, 80, torch.float16),
    (6, 2, 96, torch.bfloat16),
    (32, 8, 128, torch.bfloat16),
    (8, 2, 128, torch.float32),
    (4, 2, 256, torch.float16),
]
"""(query heads, KV heads, head size, dtype)"""

BLOCK_SIZES = [16, 64, 128]

WINDOW = 65
KINDS: list[dict[str, Any]] = [
    {"window": WINDOW},
    {"softcap": 20.0, "scale": 0.1},
    {"window": WINDOW, "softcap": 20.0},
]
KIND_HEADS = [
    (8, 2, 128, torch.bfloat16),
    (6, 2, 96, torch.bfloat16),
    (4, 1, 256, torch.bfloat16),
    (4, 4, 64, torch.float32),
]


def needs(
    heads: tuple[int, int, int, torch.dtype],
    *,
    paged: bool = True,
    block_size: int = 16,
    **kind: Any,
) -> AttentionNeeds:
    given = {"dtype": heads[3], "device": "cuda", "block_size": block_size}
    return attention_needs(heads[:3], **given, paged=paged, **kind)


def built(name: str, want: AttentionNeeds) -> AttentionBackend:
    """The backend, where it is installed and fits."""
    implementation = IMPLEMENTATIONS[name]
    if why := unmet_need(implementation.capabilities, want):
        pytest.skip(f"{name}: {why}")
    return implementation(want)


def compare(name: str, rows: Sequence[tuple[int, int]], want: AttentionNeeds, seed: int) -> None:
    # flash-attn-4 loads whole pages: what is masked in them has to be finite, and is here large.
    unused = 1e4 if name.startswith("flash_attn4") else torch.nan
    check(name, Problem(rows, want, seed=seed, unused=unused))


def check(name: str, problem: Problem | PackedProblem) -> None:
    want, bound = problem.want, TOLERANCE[problem.want.dtype]
    with torch.inference_mode():
        actual = problem.solve(built(name, want)).float()
        expected = problem.solve(NaiveBackend(want)).float()
    torch.testing.assert_close(actual, expected, atol=bound, rtol=bound)


def random_rows(draw: random.Random, block: int) -> list[tuple[int, int]]:
    """Decodes first, as a scheduler has it, then chunks; many at the edges of pages."""
    edges = [0, block - 1, block, block + 1, 2 * block, draw.randrange(600)]
    decodes = [(draw.choice(edges), 1) for _ in range(draw.randrange(4))]
    chunks = [
        (draw.choice(edges), draw.choice([1, 2, block, draw.randrange(1, 150)]))
        for _ in range(draw.randrange(4))
    ]
    return [*decodes, *chunks] or [(0, block)]


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_random_steps(name: str, heads: tuple[int, int, int, torch.dtype], block_size: int) -> None:
    draw, want = random.Random(block_size), needs(heads, block_size=block_size)
    for seed in range(6):
        compare(name, random_rows(draw, block_size), want, seed)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1)],
        [(0, 1)] * 300,
        [(0, 3)] * 300,
        [(5, 20), (40, 1), (0, 7), (3, 1)],
        [(3000, 1), (2, 1), (9000, 1)],
        [(4000, 70), (0, 300)],
    ],
    ids=["first_token", "many", "many_prompts", "any_order", "far_decodes", "far_chunk"],
)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_steps_of_every_kind(name: str, rows: list[tuple[int, int]]) -> None:
    compare(name, rows, needs((32, 8, 128, torch.bfloat16)), seed=0)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_bidirectional(name: str, heads: tuple[int, int, int, torch.dtype]) -> None:
    query_heads, _, head_dim, dtype = heads
    want = needs((query_heads, query_heads, head_dim, dtype), paged=False)
    draw = random.Random(0)
    for lengths in ([1], [7, 64, 128, 1, 65], [draw.randrange(1, 9) for _ in range(300)]):
        check(name, PackedProblem(lengths, want))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("heads", KIND_HEADS, ids=str)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_kinds_of_causal_layers(
    name: str, heads: tuple[int, int, int, torch.dtype], kind: dict[str, Any]
) -> None:
    edges = [(WINDOW - 2, 1), (WINDOW - 1, 1), (WINDOW, 1), (900, 1)]
    chunks = [(0, WINDOW - 1), (0, WINDOW), (0, WINDOW + 1), (500, 300), (WINDOW - 1, 2)]
    compare(name, [*edges, *chunks], needs(heads, **kind), seed=0)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("heads", KIND_HEADS, ids=str)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_kinds_of_bidirectional_layers(
    name: str, heads: tuple[int, int, int, torch.dtype], kind: dict[str, Any], biased: bool
) -> None:
    learned: dict[str, Any] = (
        {"position_bias": PositionBias(num_buckets=32, max_distance=128)} if biased else {}
    )
    want = needs(heads, paged=False, **kind, **learned)
    bias = torch.randn(heads[0], 511, device="cuda") if biased else None
    check(name, PackedProblem([1, WINDOW - 1, WINDOW, WINDOW + 1, 200], want, bias=bias))


@pytest.mark.parametrize("kind", [{}, {"window": WINDOW}], ids=str)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_graph_of_decoding_is_right_for_other_lengths(name: str, kind: dict[str, Any]) -> None:
    want = needs((32, 8, 128, torch.bfloat16), **kind)
    backend = built(name, want)
    if not backend.capabilities.graph_safe:
        pytest.skip(f"{name} is not for CUDA graphs")
    problem = Problem([(900, 1), (70, 1), (33, 1), (16, 1)], want)
    with torch.inference_mode():
        cache, qkv = problem.cache(), problem.qkv
        backend.write_kv(qkv, cache, problem.step.kv_indices)

        def attend() -> torch.Tensor:
            plan = backend.plan_paged(problem.step)
            return backend.attend_paged(qkv, cache, plan)

        attend()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = attend()
        for contexts in ([901, 71, 34, 17], [1, 2, 16, 17], [512, 70, 1, 15]):
            problem.step.context_lens.copy_(torch.tensor(contexts, dtype=torch.int32))
            graph.replay()
            step = dataclasses.replace(problem.step, contexts=np.array(contexts, np.int32))
            control = NaiveBackend(want)
            expected = control.attend_paged(qkv, cache, control.plan_paged(step))
            torch.testing.assert_close(out.float(), expected.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("paged", [True, False])
def test_the_fastest_backend_is_chosen_by_measurement(
    paged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    chosen = select_backend(
        "auto", needs((32, 8 if paged else 32, 128, torch.bfloat16), paged=paged), Choices()
    )
    line = next(message for message in caplog.messages if "measured" in message)
    assert "sdpa" in line
    assert not isinstance(chosen, NaiveBackend)
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []
