"""Gated layers of many rows against torch in float32."""

import logging

import pytest
import torch
import torch.nn.functional as F

from tests.workers.kernels.cases import cases, drawn
from workers.contract.model_config import ActivationName
from workers.device.choices import Choices
from workers.device.tuning import (
    GATED_HIGH_TILE,
    GATED_LOW_TILE,
    GATED_MEASURED_ROWS,
    GatedTile,
)
from workers.kernels.linear.fused import FusedActivation
from workers.kernels.linear.gated_product import (
    GatedProduct,
    can_multiply,
    gated_linear,
)
from workers.layers.activations import ACTIVATIONS, Activation

SMALL = GatedTile(32, 16, 32, 2, 4, 2)


def expected(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    function: Activation = F.silu,
) -> torch.Tensor:
    both = F.linear(rows.double(), weight.double(), None if bias is None else bias.double())
    gate, up = both.chunk(2, dim=-1)
    return function(gate) * up


@pytest.mark.parametrize(
    ("count", "layer", "function"),
    cases(
        (1, 31, 97, 130),
        [(64, 48), (72, 40), (16, 264)],
        {
            "silu": ("silu", "silu"),
            "gelu": ("gelu", "gelu"),
            "gelu_tanh": ("gelu_pytorch_tanh", "gelu_tanh"),
        },
        usual={"1-(64, 48)-gelu", "31-(72, 40)-gelu_tanh", "97-(16, 264)-silu"},
    ),
)
def test_rows_outputs_and_inputs_that_tiles_do_not_divide(
    device: torch.device,
    count: int,
    layer: tuple[int, int],
    function: tuple[ActivationName, FusedActivation],
) -> None:
    (in_features, out_features), (name, fused) = layer, function
    rows = drawn(count, in_features, dtype=torch.float16, device=device)
    weight = drawn(2 * out_features, in_features, dtype=torch.float16, device=device)
    weight *= in_features**-0.5
    got = gated_linear(rows, weight, fused, SMALL)
    assert got.shape == (count, out_features)
    assert got.dtype == torch.float16
    want = expected(rows, weight, function=ACTIVATIONS[name])
    torch.testing.assert_close(got.double(), want, rtol=2e-3, atol=2e-3)


def test_great_gates_stay_finite(device: torch.device) -> None:
    rows = torch.ones(1, 16, dtype=torch.float16, device=device)
    weight = torch.zeros(32, 16, dtype=torch.float16, device=device)
    weight[:16] = torch.arange(-2000, 2000, 250, dtype=torch.float16)[:, None]
    weight[16:] = 1 / 16
    got = gated_linear(rows, weight, "silu", SMALL)[0]
    assert got[:8].tolist() == [0.0] * 8
    torch.testing.assert_close(got[8:].float(), 16 * weight[8:16, 0].float())


def test_without_a_choice_nothing_is_measured(device: torch.device) -> None:
    weight = drawn(48, 40, dtype=torch.float32, device=device)
    rows = drawn(3, 40, dtype=torch.float32, device=device)
    got = GatedProduct(weight, None, "silu", Choices())(rows)
    torch.testing.assert_close(got.double(), expected(rows, weight), rtol=1e-4, atol=1e-4)


on_gpu = pytest.mark.skipif("not torch.cuda.is_available()", reason="measures on a GPU")


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tile", [GATED_LOW_TILE, GATED_HIGH_TILE], ids=["low", "high"])
@pytest.mark.parametrize("count", [400, 641, 1111, 4096])
def test_tiles_that_are_used(
    device: torch.device, count: int, tile: GatedTile, dtype: torch.dtype
) -> None:
    rows = drawn(count, 512, dtype=dtype, device=device)
    weight = drawn(2 * 1352, 512, dtype=dtype, device=device) * 512**-0.5
    assert can_multiply(weight) == (torch.cuda.get_device_capability()[0] == 9)
    assert not can_multiply(weight.float())
    assert not can_multiply(weight[: 2 * 1351])
    got = gated_linear(rows, weight, "silu", tile).double()
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(got, expected(rows, weight), rtol=rounding, atol=rounding / 8)


@on_gpu
def test_what_was_measured_is_logged_once(
    device: torch.device, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    weight = drawn(2 * 1360, 256, dtype=torch.bfloat16, device=device)
    choices = Choices()
    product, _ = (GatedProduct(weight, None, "silu", choices) for _ in range(2))
    (line,) = caplog.messages
    print(line)
    own = sum(tile is not None for tile in product._tiles or [])
    measured = f"own kernel for {own} of {len(GATED_MEASURED_ROWS)} numbers of tokens"
    assert f"gated product, 256 to 1360 features in torch.bfloat16: {measured}" in line


@on_gpu
@pytest.mark.parametrize("biased", [False, True])
def test_any_number_of_rows_in_the_fastest_way(device: torch.device, biased: bool) -> None:
    weight = drawn(2 * 1352, 512, dtype=torch.bfloat16, device=device) * 512**-0.5
    bias = drawn(2 * 1352, dtype=torch.bfloat16, device=device) if biased else None
    product = GatedProduct(weight, bias, "gelu_tanh", Choices())
    for count in (1, 384, 385, 400, 401, 1008, 1009, 1024, 1025, 2000):
        rows = drawn(count, 512, dtype=torch.bfloat16, device=device)
        rounded = 2 * torch.finfo(torch.bfloat16).eps
        want = expected(rows, weight, bias, ACTIVATIONS["gelu_pytorch_tanh"])
        torch.testing.assert_close(product(rows).double(), want, rtol=rounded, atol=rounded)
