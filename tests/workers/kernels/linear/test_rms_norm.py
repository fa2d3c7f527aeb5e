"""RMSNorm against its definition in float64."""

import pytest
import torch

from workers.kernels.linear.rowwise import add_rms_norm, rms_norm


@pytest.mark.parametrize(("count", "size"), [(1, 64), (5, 80), (3, 1000)])
def test_rms_norm(
    count: int, size: int, dtype: torch.dtype, rounding: float, device: torch.device
) -> None:
    numbers = torch.Generator().manual_seed(size)
    wide = 3 * torch.randn(count, 2 * size, generator=numbers).to(device, dtype)
    rows = wide[:, size:]
    weight = torch.randn(size, generator=numbers).to(device, dtype)
    exact = rows.double() * (rows.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()
    got = rms_norm(rows, weight, 1e-5)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), exact * weight.double(), rtol=rounding, atol=1e-7)


def test_sum_with_a_residual(dtype: torch.dtype, rounding: float, device: torch.device) -> None:
    residual = 3 * torch.randn(4, 80).to(device, dtype)
    rows, weight = torch.randn(4, 160).to(device, dtype)[:, 80:], torch.randn(80).to(device)
    normed = rows.double() * (rows.double().square().mean(1, keepdim=True) + 1e-5).rsqrt()
    exact = residual.double() + normed * weight.double()
    got = add_rms_norm(residual, rows, weight, 1e-5)
    assert got is residual
    torch.testing.assert_close(got.double(), exact, rtol=rounding, atol=4e-6)


def test_epsilon_counts(device: torch.device) -> None:
    rows = torch.full((1, 16), 1e-3, device=device)
    got = rms_norm(rows, torch.ones(16, device=device), 3e-6)
    torch.testing.assert_close(got, torch.full_like(rows, 0.5))
