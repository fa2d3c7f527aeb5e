"""SiLU(gate) * up against its definition in float64."""

import pytest
import torch

from workers.kernels.linear.silu_mul import silu_mul


@pytest.mark.parametrize(("count", "features"), [(1, 48), (3, 1024), (2, 1500)])
def test_silu_mul(
    count: int, features: int, dtype: torch.dtype, rounding: float, device: torch.device
) -> None:
    numbers = torch.Generator().manual_seed(features)
    wide = 4 * torch.randn(count, 2 * features + 8, generator=numbers)
    gate_up = wide.to(device, dtype)[:, : 2 * features]
    gate, up = gate_up.double().chunk(2, dim=1)
    got = silu_mul(gate_up)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), gate * gate.sigmoid() * up, rtol=rounding, atol=1e-7)


def test_great_gates_stay_finite(device: torch.device) -> None:
    gate_up = torch.tensor([[-1000.0, 1000.0, 2.0, 3.0]], device=device)
    assert silu_mul(gate_up).tolist() == [[0.0, 3000.0]]
