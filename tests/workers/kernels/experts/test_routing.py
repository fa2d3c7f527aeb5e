"""Routing on the device against torch."""

import pytest
import torch

from tests.workers.kernels.cases import drawn
from workers.contract.experts import ExpertsConfig, Scoring
from workers.kernels.experts import routing
from workers.layers import experts

CONFIGS = {
    "softmax": ExpertsConfig(count=128, active=8, size=1, normalised=False),
    "normalised": ExpertsConfig(count=60, active=4, size=1),
    "corrected": ExpertsConfig(count=64, active=6, size=1, correction=True, least_sum=1e-12),
    "sigmoid": ExpertsConfig(
        count=256, active=8, size=1, scoring="sigmoid", correction=True, scale=2.5
    ),
    "chosen": ExpertsConfig(count=32, active=4, size=1, scoring="chosen"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_choice(name: str, device: torch.device) -> None:
    config = CONFIGS[name]
    assert routing.chooses(config)
    logits = 2 * drawn(5, config.count, dtype=torch.float32, device=device)
    correction = None
    if config.correction:
        correction = drawn(config.count, dtype=torch.float32, device=device) / 5
    got_experts, got_weights = routing.choose(logits, config, correction)
    want = experts.choose(logits, config, correction)
    assert got_experts.equal(want.experts.int())
    torch.testing.assert_close(got_weights, want.weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "chosen"])
def test_of_equal_scores_the_first_and_never_none(scoring: Scoring, device: torch.device) -> None:
    config = ExpertsConfig(count=5, active=3, size=1, scoring=scoring)
    logits = torch.tensor([[1.0, 2, 2, 2, 2], [0] * 5, [torch.nan] * 5], device=device)
    chosen, _ = routing.choose(logits, config, None)
    assert chosen.tolist()[:2] == [[1, 2, 3], [0, 1, 2]]
    assert 0 <= int(chosen.min()) <= int(chosen.max()) < 5


@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_groups(tokens: int, device: torch.device) -> None:
    count = 40
    chosen = torch.stack([torch.randperm(count - 5)[:4] for _ in range(tokens)]).int().to(device)
    order, ends = routing.group(chosen, count)
    by_expert, want = chosen.flatten().sort(stable=True)
    assert order.equal(want.int())
    assert ends.tolist() == [int((by_expert <= expert).sum()) for expert in range(count)]


def test_the_sum(device: torch.device) -> None:
    residual = drawn(3, 1500, dtype=torch.float16, device=device)
    outputs = drawn(12, 1500, dtype=torch.float16, device=device)
    weights = torch.rand(3, 4).to(device)
    by_token = outputs.float().view(3, 4, -1)
    want = residual.float() + (by_token * weights[:, :, None]).sum(1)
    got = routing.combine(residual, outputs, weights)
    torch.testing.assert_close(got.float(), want, rtol=1e-3, atol=1e-3)
