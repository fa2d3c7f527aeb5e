"""Windows, softcaps and position biases in our own kernels, against the control group."""

from typing import Any

import pytest
import torch

from tests.workers.attention_problems import Problem, attention_needs, on_device
from tests.workers.step_tensors import packed_step
from workers.attention.backends.naive import NaiveBackend
from workers.attention.backends.triton import TritonBackend
from workers.attention.base import QKV, AttentionBackend

WINDOW = 20
KINDS: dict[str, dict[str, Any]] = {
    "window": {"window": WINDOW},
    "window_of_one": {"window": 1},
    "softcap": {"softcap": 2.0},
    "all": {"window": WINDOW, "softcap": 3.0, "scale": 0.4},
}
STEPS = {
    "prompts": [(0, WINDOW - 1), (0, WINDOW), (0, WINDOW + 1), (0, 1)],
    "decodes": [(WINDOW - 2, 1), (WINDOW - 1, 1), (WINDOW, 1), (90, 1)],
    "chunks": [(70, 1), (WINDOW - 1, 3), (60, 40)],
}
"""Rows of a step: (cached tokens, queries)"""


@pytest.mark.parametrize("rows", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_causal(kind: dict[str, Any], rows: list[tuple[int, int]], device: torch.device) -> None:
    want = attention_needs(device=device.type, num_kv_heads=2, head_dim=24, block_size=16, **kind)
    problem = Problem(rows, want)
    expected = problem.solve(NaiveBackend(want))
    torch.testing.assert_close(problem.solve(TritonBackend(want)), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_bidirectional(kind: dict[str, Any], biased: bool, device: torch.device) -> None:
    want = attention_needs(paged=False, device=device.type, num_kv_heads=2, head_dim=24, **kind)
    lengths = [1, WINDOW - 1, WINDOW, WINDOW + 1, 75]
    step = on_device(packed_step([[0] * length for length in lengths]), device.type)
    numbers = torch.Generator().manual_seed(0)
    parts = torch.randn(sum(lengths), 8, 24, generator=numbers).to(device).split([4, 2, 2], dim=1)
    bias = 2 * torch.randn(4, 199, generator=numbers).to(device) if biased else None
    backends: list[AttentionBackend] = [TritonBackend(want), NaiveBackend(want)]
    ours, naive = (
        backend.attend_packed(QKV(*parts), backend.plan_packed(step, bias)) for backend in backends
    )
    torch.testing.assert_close(ours, naive, atol=2e-5, rtol=0)
