"""Prefixes that rows of a step share, attended once on the CPU."""

import random

import numpy as np
import pytest
import torch

from tests.workers.attention.reference import solution
from tests.workers.attention_problems import Problem, attention_needs
from workers.attention.backends import sdpa
from workers.attention.backends.sdpa import DensePlan, SdpaBackend
from workers.device.tuning import CPU_PREFIX_MIN_GAIN
from workers.step.paged_step import LastTokens

BLOCK = 4
HEADS = [(4, 4, 16), (4, 1, 24), (6, 2, 32)]

Rows = list[tuple[int, int]]
Groups = list[tuple[int, int, int]]


@pytest.fixture
def any_group_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "CPU_PREFIX_MIN_GAIN", -(1 << 40))


def plan(problem: Problem) -> DensePlan:
    return SdpaBackend(problem.want).plan_paged(problem.step)


def check(problem: Problem, bound: float = 3e-6) -> None:
    attended = problem.solve(SdpaBackend(problem.want))
    torch.testing.assert_close(attended.double(), solution(problem), atol=bound, rtol=0)


def random_rows(draw: random.Random, decodes: bool) -> tuple[Rows, Groups]:
    """Groups of 1 to 40 rows, and rows between them that are in none."""
    rows: Rows = []
    groups: Groups = []
    for _ in range(draw.randrange(1, 5)):
        prefix = BLOCK * draw.choice([1, 2, 7, 30])
        members = draw.choice([1, 2, 3, draw.randrange(4, 41)])
        groups.append((len(rows), members, prefix))
        for _ in range(members):
            own = draw.choice([0, 0, draw.randrange(1, 12)])
            rows.append((prefix + own, 1 if decodes else draw.choice([1, 2, draw.randrange(3, 9)])))
        for _ in range(draw.randrange(3)):
            rows.append((draw.randrange(50), 1 if decodes else draw.randrange(1, 20)))
    return rows, groups


def random_step(draw: random.Random) -> tuple[Rows, Groups]:
    """Decode rows, chunks, or both; of the rows of chunks some have one token."""
    kinds = draw.choice([[True], [False], [True, False]])
    rows: Rows = []
    groups: Groups = []
    for decodes in kinds:
        more, their_groups = random_rows(draw, decodes)
        groups += [(first + len(rows), count, prefix) for first, count, prefix in their_groups]
        rows += more
    return rows, groups


@pytest.mark.usefixtures("any_group_pays")
@pytest.mark.parametrize(
    ("seed", "dtype"),
    [
        *((seed, torch.float32) for seed in range(30)),
        *((seed, dtype) for seed in range(4) for dtype in (torch.bfloat16, torch.float16)),
    ],
)
def test_random_groups(seed: int, dtype: torch.dtype) -> None:
    draw = random.Random(seed)
    rows, groups = random_step(draw)
    want = attention_needs(draw.choice(HEADS), dtype=dtype)
    problem = Problem(rows, want, groups=groups, seed=seed)
    assert [len(prefix.kv_indices) for prefix in plan(problem).prefixes] == [
        prefix for _, _, prefix in groups
    ]
    check(problem, 3e-6 if dtype == torch.float32 else 2e-2)


@pytest.mark.usefixtures("any_group_pays")
@pytest.mark.parametrize("large", ["prefix", "own"])
def test_scores_of_which_one_part_has_nearly_all(large: str) -> None:
    """A softmax of which either part has nothing left overflows nowhere."""
    problem = Problem([(BLOCK + 5, 1)] * 3, attention_needs((4, 2, 16)), groups=[(0, 3, BLOCK)])
    for keys in problem.row_keys:
        part = keys[:BLOCK] if large == "prefix" else keys[BLOCK:]
        part *= 300
    check(problem)


@pytest.mark.usefixtures("any_group_pays")
@pytest.mark.parametrize("seed", range(8))
def test_last_tokens_keep_their_groups(seed: int) -> None:
    draw = random.Random(seed)
    rows, groups = random_step(draw)
    problem = Problem(rows, attention_needs((6, 2, 32)), groups=groups)
    subset = np.flatnonzero([draw.random() < 0.7 for _ in rows])
    last = LastTokens.of(problem.step, problem.step_rows, subset)
    backend, at = SdpaBackend(problem.want), last.indices[: len(subset)]
    cache, plan = problem.cache(filled=True), backend.plan_paged(last.rows)
    attended = backend.attend_paged(problem.qkv.at(at), cache, plan)
    torch.testing.assert_close(attended.double(), solution(problem)[at], atol=3e-6, rtol=0)


def test_only_groups_that_pay() -> None:
    want = attention_needs((4, 2, 32))
    spared = CPU_PREFIX_MIN_GAIN * torch.get_num_threads() // 32 + 2 * 4  # keys, of all KV heads
    prefix = -(-spared // 2 // BLOCK) * BLOCK
    rows = [(prefix, 1)] * 2 + [(prefix - BLOCK, 1)] * 2 + [(prefix, BLOCK * 2)] * 2
    problem = Problem(rows, want, groups=[(row, 2, rows[row][0]) for row in (0, 2, 4)])
    prefixes = plan(problem).prefixes
    assert [prefix.tokens for prefix in prefixes] == [slice(0, 2)]
    check(problem)


@pytest.mark.usefixtures("any_group_pays")
@pytest.mark.parametrize("change", [{"window": 6}, {"softcap": 5.0}], ids=str)
def test_kinds_whose_rows_stay_alone(change: dict[str, float]) -> None:
    problem = Problem([(8, 1), (9, 1), (8, 3)], attention_needs(**change), groups=[(0, 3, 8)])
    assert not plan(problem).prefixes
    check(problem)
