"""The backend of our own kernels, step by step, against the definition."""

import random
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.workers.attention.reference import assert_solved, solution
from tests.workers.attention_problems import Heads, PackedProblem, Problem, attention_needs
from tests.workers.kernels.cases import cases
from tests.workers.kernels.grouped_rows import Group, grouped
from workers.attention.backends.flash_attn import FlashAttention4Backend
from workers.attention.backends.triton import TritonBackend, min_splits
from workers.attention.base import AttentionNeeds

STEPS = {
    "decode": [(30, 1), (0, 1), (70, 1)],
    "prompts": [(0, 9), (0, 17)],
    "decode_then_chunks": [(30, 1), (16, 1), (5, 20), (0, 7)],
    "one_far_longer": [(4600, 1), *((9, 1) for _ in range(16))],
    "any_order": [(0, 5), (31, 1), (3, 18), (15, 1), (0, 1)],
}
"""Rows of a step: (cached tokens, queries)"""

WINDOW = 20
KINDS: dict[str, dict[str, Any]] = {
    "window": {"window": WINDOW},
    "window_of_one": {"window": 1},
    "softcap": {"softcap": 2.0},
    "all": {"window": WINDOW, "softcap": 3.0, "scale": 0.4},
    "sinks": {"window": WINDOW, "sinks": True},
}
PACKED_KINDS = {name: kind for name, kind in KINDS.items() if "sinks" not in kind}
AT_WINDOWS = {
    "prompts": [(0, WINDOW - 1), (0, WINDOW), (0, WINDOW + 1), (0, 1)],
    "decodes": [(WINDOW - 2, 1), (WINDOW - 1, 1), (WINDOW, 1), (90, 1)],
    "chunks": [(70, 1), (WINDOW - 1, 3), (60, 40)],
}


def needs(device: torch.device, heads: Heads = (4, 2, 64), **changes: Any) -> AttentionNeeds:
    given: dict[str, Any] = {"dtype": torch.float16, "block_size": 16}
    return attention_needs(heads, **given | changes, device=device.type)


@pytest.mark.parametrize("step", cases(STEPS, usual={"decode", "any_order"}))
def test_paged(step: list[tuple[int, int]], device: torch.device) -> None:
    problem = Problem(step, needs(device))
    assert_solved(problem.solve(TritonBackend(problem.want)), problem)


@pytest.mark.long
def test_random_steps(device: torch.device) -> None:
    draw = random.Random(5)
    for _ in range(5):
        step = [
            (draw.choice([0, draw.randrange(70)]), draw.choice([1, 1, draw.randrange(1, 24)]))
            for _ in range(draw.randrange(1, 6))
        ]
        heads = draw.choice([(2, 2, 64), (4, 1, 80), (3, 1, 96)])
        problem = Problem(step, needs(device, heads))
        assert_solved(problem.solve(TritonBackend(problem.want)), problem)


def check(problem: Problem | PackedProblem) -> None:
    """In float32. Scores of a softcap are less exact than others."""
    attended = problem.solve(TritonBackend(problem.want))
    torch.testing.assert_close(attended.double(), solution(problem), atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("kind", "rows"),
    cases(
        KINDS,
        AT_WINDOWS,
        usual={
            "window-decodes",
            "window_of_one-chunks",
            "softcap-decodes",
            "all-chunks",
            "sinks-decodes",
            "sinks-chunks",
        },
    ),
)
def test_causal_kinds(
    kind: dict[str, Any], rows: list[tuple[int, int]], device: torch.device
) -> None:
    check(Problem(rows, needs(device, (4, 2, 24), dtype=torch.float32, **kind)))


@pytest.mark.parametrize(
    ("kind", "biased"),
    cases(
        PACKED_KINDS, {"plain": False, "biased": True}, usual={"window_of_one-plain", "all-biased"}
    ),
)
def test_bidirectional_kinds(kind: dict[str, Any], biased: bool, device: torch.device) -> None:
    want = needs(device, (4, 2, 24), dtype=torch.float32, paged=False, **kind)
    bias = 2 * torch.randn(4, 199).to(device) if biased else None
    check(PackedProblem([1, WINDOW - 1, WINDOW, WINDOW + 1, 42], want, bias=bias))


@pytest.mark.parametrize(
    ("contexts", "splits"),
    [
        ([], 1),
        ([32000], 1),
        ([32000] + [600] * 15, 1),
        ([32000] + [600] * 16, 16),
        ([32000] * 64, 1),
        ([4096] + [10] * 63, 1),
        ([5000] + [10] * 63, 4),
        ([5000] + [2000] * 63, 1),
    ],
)
def test_skewed_contexts_are_split(contexts: list[int], splits: int) -> None:
    assert min_splits(np.array(contexts, np.int32)) == splits


DECODES = [Group(48, [(0, 1), (15, 1), (70, 1)]), Group(0, [(20, 1)]), Group(16, [(3, 1)] * 9)]
CHUNKS = [Group(64, [(0, 2), (9, 3), (16, 1)]), Group(32, [(0, 40), (7, 30)]), Group(0, [(5, 9)])]
GROUPS = {"decodes": DECODES, "chunks": CHUNKS, "both": [*DECODES, *CHUNKS]}


@pytest.mark.usefixtures("any_saving")
@pytest.mark.parametrize(
    ("groups", "heads"),
    cases(GROUPS, [(4, 2, 64), (4, 4, 32)], usual={"both-(4, 2, 64)"}),
)
def test_prefixes_are_attended_once(
    groups: list[Group],
    heads: Heads,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = grouped(groups, needs(device, heads, sinks=True))
    backend = TritonBackend(problem.want)
    launches: list[tuple[Any, ...]] = []
    real = backend._attend_prefixes

    def counted(*args: Any) -> None:
        launches.append(args)
        real(*args)

    monkeypatch.setattr(backend, "_attend_prefixes", counted)
    assert_solved(problem.solve(backend), problem)
    assert len(launches) == 1


@pytest.mark.usefixtures("any_saving")
def test_decode_rows_of_flash_attention(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go to our own kernels, whatever the library, and they alone share: single tokens of own
    parts, with which a group begins, look like them."""
    library = ModuleType("flash_attn.cute.interface")
    vars(library)["_flash_attn_fwd"] = None
    monkeypatch.setitem(sys.modules, library.__name__, library)
    problem = grouped(DECODES, needs(device))
    backend = FlashAttention4Backend(problem.want)
    assert backend.plan_paged(problem.step).prefixes is not None
    assert_solved(problem.solve(backend), problem)
    mixed = grouped([Group(48, [(0, 1), (2, 1), (5, 1), (1, 4), (0, 9)])], needs(device))
    plan = FlashAttention4Backend(mixed.want).plan_paged(mixed.step)
    assert plan.prefixes is not None
    assert plan.prefixes.parts.starts.tolist() == [48, 48, 48]


@pytest.mark.usefixtures("any_saving")
def test_windows_know_no_groups(device: torch.device) -> None:
    problem = grouped(DECODES, needs(device, (2, 1, 32)))
    kind = problem.want.kind.__class__(causal=True, scale=1.0, window=64)
    windowed = replace(problem.want, kind=kind)
    assert TritonBackend(windowed).plan_paged(problem.step).prefixes is None
