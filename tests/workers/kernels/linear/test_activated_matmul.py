"""Linear layers of many rows with their activation function, against torch in float64."""

import pytest
import torch
import torch.nn.functional as F

from tests.workers.kernels.drawn import drawn
from workers.device.tuning import ACTIVATED_TILES, GatedTile
from workers.kernels.linear.activated_matmul import activated_linear
from workers.kernels.linear.activated_matmul_selection import ActivatedProduct

SMALL = GatedTile(32, 16, 32, 2, 4, 2)


def expected(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(rows.double(), weight.double(), bias.double()))


@pytest.mark.parametrize("count", [1, 31, 97])
@pytest.mark.parametrize(("in_features", "out_features"), [(64, 48), (72, 40), (16, 264)])
def test_rows_outputs_and_inputs_that_tiles_do_not_divide(
    device: torch.device, count: int, in_features: int, out_features: int
) -> None:
    rows = drawn(count, in_features, dtype=torch.float16, device=device)
    weight = drawn(out_features, in_features, dtype=torch.float16, device=device)
    weight *= in_features**-0.5
    bias = drawn(out_features, dtype=torch.float16, device=device)
    got = activated_linear(rows, weight, bias, "gelu", SMALL)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.double(), expected(rows, weight, bias), rtol=2e-3, atol=2e-3)


@pytest.mark.skipif("not torch.cuda.is_available()", reason="measures on a GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_any_number_of_rows_in_the_fastest_way(device: torch.device, dtype: torch.dtype) -> None:
    weight = drawn(3080, 768, dtype=dtype, device=device) * 768**-0.5
    bias = drawn(3080, dtype=dtype, device=device)
    product = ActivatedProduct(weight, bias, "gelu")
    rounded = 4 * torch.finfo(dtype).eps
    for count in (1, 300, 2047, 2048, 2049, 8192, 16384):
        rows = drawn(count, 768, dtype=dtype, device=device)
        want = expected(rows, weight, bias)
        ways = [product(rows)]
        ways += [activated_linear(rows, weight, bias, "gelu", tile) for tile in ACTIVATED_TILES]
        for got in ways:
            torch.testing.assert_close(got.double(), want, rtol=rounded, atol=rounded)
