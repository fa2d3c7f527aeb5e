"""Kernels that read each row once, against their definitions in float64."""

import pytest
import torch
import torch.nn.functional as F

from tests.workers.kernels.cases import drawn
from workers.contract.model_config import ActivationName
from workers.kernels.linear.fused import FusedActivation
from workers.kernels.linear.rowwise import (
    activation_mul,
    embedding,
    layer_norm,
    rms_norm,
)
from workers.layers.activations import ACTIVATIONS

ROWS = pytest.mark.parametrize(("count", "size"), [(1, 64), (5, 80), (3, 1000)])


@ROWS
def test_embedding(count: int, size: int, dtype: torch.dtype, device: torch.device) -> None:
    weight = drawn(30, size, dtype=dtype, device=device)
    ids = torch.randint(0, 30, (count + 1,), device=device)[1:]
    assert torch.equal(embedding(ids, weight), weight[ids])
    torch.testing.assert_close(embedding(ids, weight, 50.5), weight[ids] * 50.5)
    assert embedding(ids[:0], weight).shape == (0, size)


@ROWS
def test_rms_norm(
    count: int, size: int, dtype: torch.dtype, rounding: float, device: torch.device
) -> None:
    rows = 3 * drawn(count, 2 * size, dtype=dtype, device=device)[:, size:]
    weight = drawn(size, dtype=dtype, device=device)
    exact = rows.double() * (rows.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()
    exact *= weight.double()
    got = rms_norm(rows, weight, 1e-5)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=rounding, atol=1e-7)
    residual = 3 * drawn(count, size, dtype=dtype, device=device)
    exact += residual.double()
    got = rms_norm(rows, weight, 1e-5, residual)
    assert got is residual
    torch.testing.assert_close(got.double(), exact, rtol=rounding, atol=4e-6)


def test_epsilon_counts(device: torch.device) -> None:
    rows = torch.full((1, 16), 1e-3, device=device)
    got = rms_norm(rows, torch.ones(16, device=device), 3e-6)
    torch.testing.assert_close(got, torch.full_like(rows, 0.5))


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("summed", [True, False])
@ROWS
def test_layer_norm(
    *,
    count: int,
    size: int,
    biased: bool,
    summed: bool,
    dtype: torch.dtype,
    rounding: float,
    device: torch.device,
) -> None:
    residual, rows = (3 + drawn(count, size, dtype=dtype, device=device) for _ in range(2))
    weight, bias = (drawn(size, dtype=dtype, device=device) for _ in range(2))
    before = residual.clone()
    added = bias if biased else None
    got = layer_norm(rows, weight, added, 1e-2, residual=residual if summed else None)
    total = residual.double() + rows.double() if summed else rows.double()
    exact = F.layer_norm(total, (size,), weight.double(), bias.double() if biased else None, 1e-2)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact, rtol=rounding, atol=4e-6)
    assert torch.equal(residual, before)


@pytest.mark.parametrize(
    ("name", "function"),
    [("silu", "silu"), ("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_tanh")],
)
@pytest.mark.parametrize(("count", "features"), [(1, 48), (3, 1024), (2, 1500)])
def test_activation_mul(
    *,
    name: ActivationName,
    function: FusedActivation,
    count: int,
    features: int,
    dtype: torch.dtype,
    rounding: float,
    device: torch.device,
) -> None:
    gate_up = 4 * drawn(count, 2 * features + 8, dtype=dtype, device=device)[:, : 2 * features]
    gate, up = gate_up.double().chunk(2, dim=1)
    got = activation_mul(gate_up, function)
    assert got.dtype == dtype
    exact = ACTIVATIONS[name](gate) * up
    torch.testing.assert_close(got.double(), exact, rtol=rounding, atol=3e-6)


@pytest.mark.parametrize("function", ["silu", "gelu", "gelu_tanh"])
def test_great_gates_stay_finite(function: FusedActivation, device: torch.device) -> None:
    gate_up = torch.tensor([[-1000.0, 1000.0, 2.0, 3.0]], device=device)
    assert activation_mul(gate_up, function).tolist() == [[0.0, 3000.0]]
