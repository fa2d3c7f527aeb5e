"""Gated layers of many rows against torch in float32."""

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.drawn import drawn
from workers.kernels.gated_linear import Tile, fuses_gate, gated_linear

SMALL = Tile(32, 16, 32, 2, 4, 2)


def expected(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gate, up = (rows.double() @ weight.double().T).chunk(2, dim=-1)
    return F.silu(gate) * up


@pytest.mark.parametrize("count", [1, 31, 97, 130])
@pytest.mark.parametrize(("in_features", "out_features"), [(64, 48), (72, 40), (16, 264)])
def test_rows_outputs_and_inputs_that_tiles_do_not_divide(
    device: torch.device, count: int, in_features: int, out_features: int
) -> None:
    rows = drawn(count, in_features, dtype=torch.float16, device=device)
    weight = drawn(2 * out_features, in_features, dtype=torch.float16, device=device)
    weight *= in_features**-0.5
    got = gated_linear(rows, weight, tile=SMALL)
    assert got.shape == (count, out_features)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.double(), expected(rows, weight), rtol=2e-3, atol=2e-3)


def test_great_gates_stay_finite(device: torch.device) -> None:
    rows = torch.ones(1, 16, dtype=torch.float16, device=device)
    weight = torch.zeros(32, 16, dtype=torch.float16, device=device)
    weight[:16] = torch.arange(-2000, 2000, 250, dtype=torch.float16)[:, None]
    weight[16:] = 1 / 16
    got = gated_linear(rows, weight, tile=SMALL)[0]
    assert got[:8].tolist() == [0.0] * 8
    torch.testing.assert_close(got[8:].float(), 16 * weight[8:16, 0].float())


@pytest.mark.skipif("not torch.cuda.is_available()", reason="what fits depends on the GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [400, 641, 1111, 4096])
def test_layers_of_a_usual_size(device: torch.device, count: int, dtype: torch.dtype) -> None:
    rows = drawn(count, 512, dtype=dtype, device=device)
    weight = drawn(2 * 1352, 512, dtype=dtype, device=device) * 512**-0.5
    assert fuses_gate(rows, weight) == (torch.cuda.get_device_capability()[0] == 9)
    assert not fuses_gate(rows[:64], weight)
    assert not fuses_gate(rows.float(), weight.float())
    assert not fuses_gate(rows, weight[: 2 * 1351])
    got = gated_linear(rows, weight).double()
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(got, expected(rows, weight), rtol=rounding, atol=rounding / 8)
