"""f(gate) * up against its definition in float64."""

import pytest
import torch

from workers.contract.model_config import ActivationName
from workers.kernels.linear.fused import FusedActivation
from workers.kernels.linear.rowwise import activation_mul
from workers.layers.linear import activation


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
    numbers = torch.Generator().manual_seed(features)
    wide = 4 * torch.randn(count, 2 * features + 8, generator=numbers)
    gate_up = wide.to(device, dtype)[:, : 2 * features]
    gate, up = gate_up.double().chunk(2, dim=1)
    got = activation_mul(gate_up, function)
    assert got.dtype == dtype
    exact = activation(name)(gate) * up
    torch.testing.assert_close(got.double(), exact, rtol=rounding, atol=3e-6)


@pytest.mark.parametrize("function", ["silu", "gelu", "gelu_tanh"])
def test_great_gates_stay_finite(function: FusedActivation, device: torch.device) -> None:
    gate_up = torch.tensor([[-1000.0, 1000.0, 2.0, 3.0]], device=device)
    assert activation_mul(gate_up, function).tolist() == [[0.0, 3000.0]]
