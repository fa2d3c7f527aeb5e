"""Products of few rows, with what is fused around them, against torch in float32."""

import pytest
import torch
import torch.nn.functional as F

from tests.workers.kernels.cases import cases, drawn
from workers.contract.model_config import ActivationName
from workers.device.tuning import SkinnyTile
from workers.kernels.linear.fused import Norm
from workers.kernels.linear.skinny_linear import linear
from workers.layers.activations import ACTIVATIONS, FUSED

EPS = 1e-5
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}


@pytest.mark.parametrize(
    ("count", "layer", "given", "dtype"),
    cases(
        (1, 2, 5, 16, 17, 32),
        [(64, 48), (200, 40), (520, 24)],
        {
            "silu": ("silu", False),
            "biased_silu": ("silu", True),
            "biased_gelu": ("gelu", True),
            "biased_gelu_tanh": ("gelu_pytorch_tanh", True),
        },
        (torch.float32, torch.float16),
        usual={
            "1-(64, 48)-silu-torch.float32",
            "1-(200, 40)-silu-torch.float16",
            "1-(200, 40)-biased_gelu-torch.float32",
            "5-(200, 40)-biased_gelu-torch.float32",
            "17-(200, 40)-silu-torch.float16",
            "17-(200, 40)-biased_gelu_tanh-torch.float32",
            "32-(64, 48)-biased_silu-torch.float16",
        },
    ),
)
def test_a_product_with_what_surrounds_it(
    device: torch.device,
    count: int,
    layer: tuple[int, int],
    given: tuple[ActivationName, bool],
    dtype: torch.dtype,
) -> None:
    (in_features, out_features), (name, biased) = layer, given
    rows = drawn(count, in_features, dtype=dtype, device=device)
    weight = drawn(out_features, in_features, dtype=dtype, device=device) * in_features**-0.5
    bias = drawn(out_features, dtype=dtype, device=device) if biased else None
    norm = Norm(drawn(in_features, dtype=dtype, device=device), EPS)
    residual = drawn(count, out_features, dtype=dtype, device=device)
    wide, added = weight.float(), None if bias is None else bias.float()
    normed = F.rms_norm(rows.float(), (in_features,), norm.weight.float(), EPS)
    plain, product = (F.linear(inputs, wide, added) for inputs in (rows.float(), normed))
    gate, up = product.chunk(2, dim=-1)
    function, summed = ACTIVATIONS[name], product + residual.float()
    fused = FUSED[function]
    for got, want in (
        (linear(rows, weight, bias=bias), plain),
        (linear(rows, weight, bias=bias, norm=norm, residual=residual), summed),
        (linear(rows, weight, bias=bias, norm=norm, gate=fused), function(gate) * up),
        (residual, summed),
    ):
        assert got.dtype == dtype
        assert (got.float() - want).abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("outputs", [1, 32])  # a reranker has one
@pytest.mark.parametrize("count", [1, 2, 17])
def test_rows_may_lie_apart(device: torch.device, count: int, outputs: int) -> None:
    rows = drawn(count, 96, dtype=torch.float32, device=device)[:, :64]
    weight = drawn(outputs, 64, dtype=torch.float32, device=device)
    assert (linear(rows, weight) - rows @ weight.T).abs().max() < TOLERANCE[torch.float32]


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
