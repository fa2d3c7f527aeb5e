"""Products of few rows, with what is fused around them, against torch in float32."""

import pytest
import torch
import torch.nn.functional as F

from tests.workers.kernels.cases import cases
from tests.workers.kernels.drawn import drawn
from workers.contract.model_config import ActivationName
from workers.device.tuning import SkinnyTile
from workers.kernels.linear.fused import Norm
from workers.kernels.linear.skinny_linear import linear
from workers.layers.linear import activation, fused_activation

EPS = 1e-5
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("count", "in_features", "out_features"),
    [
        pytest.param(
            count, *layer, marks=() if count in (1, 17) and layer != (520, 24) else pytest.mark.long
        )
        for count in (1, 2, 16, 17, 32)
        for layer in [(64, 48), (200, 40), (520, 24)]
    ],
)
def test_a_product_with_what_surrounds_it(
    device: torch.device, dtype: torch.dtype, count: int, in_features: int, out_features: int
) -> None:
    rows = drawn(count, in_features, dtype=dtype, device=device)
    weight = drawn(out_features, in_features, dtype=dtype, device=device) * in_features**-0.5
    norm = Norm(drawn(in_features, dtype=dtype, device=device), EPS)
    residual = drawn(count, out_features, dtype=dtype, device=device)
    plain = rows.float() @ weight.float().T
    normed = F.rms_norm(rows.float(), (in_features,), norm.weight.float(), EPS)
    product = normed @ weight.float().T
    gate, up = product.chunk(2, dim=-1)
    given = residual.clone()
    for got, want in (
        (linear(rows, weight), plain),
        (linear(rows, weight, norm=norm, residual=given), product + residual.float()),
        (linear(rows, weight, norm=norm, gate="silu"), F.silu(gate) * up),
    ):
        assert got.dtype == dtype
        assert (got.float() - want).abs().max() < TOLERANCE[dtype]
    assert (given.float() - product - residual.float()).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("count", [1, 2, 17])
def test_a_product_of_one_output(device: torch.device, count: int) -> None:
    """As a reranker has it."""
    rows = drawn(count, 64, dtype=torch.float32, device=device)
    weight = drawn(1, 64, dtype=torch.float32, device=device)
    assert (linear(rows, weight) - rows @ weight.T).abs().max() < TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    ("count", "name"),
    cases(
        {str(count): count for count in (1, 5, 17)},
        {name: name for name in ("silu", "gelu", "gelu_pytorch_tanh")},
        usual={"1-silu", "1-gelu", "17-gelu_pytorch_tanh"},
    ),
)
def test_a_bias_and_what_surrounds_it(
    device: torch.device, count: int, name: ActivationName
) -> None:
    rows = drawn(count, 200, dtype=torch.float32, device=device)
    weight = drawn(40, 200, dtype=torch.float32, device=device) * 200**-0.5
    norm = Norm(drawn(200, dtype=torch.float32, device=device), EPS)
    bias = drawn(40, dtype=torch.float32, device=device)
    residual = drawn(count, 40, dtype=torch.float32, device=device)
    plain = F.linear(rows, weight, bias)
    product = F.linear(F.rms_norm(rows, (200,), norm.weight, EPS), weight, bias)
    gate, up = product.chunk(2, dim=-1)
    function = activation(name)
    fused = fused_activation(function)
    assert fused is not None
    for got, want in (
        (linear(rows, weight, bias=bias, residual=residual.clone()), plain + residual),
        (linear(rows, weight, bias=bias, norm=norm), product),
        (linear(rows, weight, bias=bias, norm=norm, gate=fused), function(gate) * up),
    ):
        assert (got - want).abs().max() < TOLERANCE[torch.float32]


@pytest.mark.parametrize("count", [1, 3])
def test_rows_may_lie_apart(device: torch.device, count: int) -> None:
    wide = drawn(count, 96, dtype=torch.float32, device=device)
    weight = drawn(32, 64, dtype=torch.float32, device=device)
    got = linear(wide[:, :64], weight)
    assert (got - wide[:, :64] @ weight.T).abs().max() < TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    ("count", "tile"),
    [
        (1, SkinnyTile(4, 32, 4, 1)),
        (5, SkinnyTile(16, 32, 4, 2)),
        (8, SkinnyTile(16, 32, 4, 2, ahead=256)),
    ],
)
def test_tiles_that_do_not_divide_the_layer(
    device: torch.device, count: int, tile: SkinnyTile
) -> None:
    rows = drawn(count, 72, dtype=torch.float32, device=device)
    weight = drawn(26, 72, dtype=torch.float32, device=device)
    norm = Norm(drawn(72, dtype=torch.float32, device=device), EPS)
    got = linear(rows, weight, norm=norm, gate="silu", tile=tile)
    gate, up = (F.rms_norm(rows, (72,), norm.weight, EPS) @ weight.T).chunk(2, dim=-1)
    assert (got - F.silu(gate) * up).abs().max() < TOLERANCE[torch.float32] * 10
