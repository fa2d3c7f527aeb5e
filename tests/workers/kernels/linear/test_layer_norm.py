"""LayerNorm, of a sum too, against torch's in float64."""

import pytest
import torch
import torch.nn.functional as F

from tests.workers.kernels.drawn import drawn
from workers.kernels.linear.rowwise import layer_norm


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize(("count", "size"), [(1, 64), (5, 80), (3, 1000)])
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
