"""Products of rows and weights in FP8 against torch in float32."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.workers.kernels.cases import cases, drawn
from tests.workers.kernels.linear.fp8_weights import (
    Scaled,
    dequantized,
    dequantized_rows,
    fp8_weight,
    quantized,
)
from workers.device.choices import Choices
from workers.device.tuning import FP8_SKINNY_MAX_ROWS, GatedTile
from workers.kernels.linear.fp8_product import Fp8Product
from workers.kernels.linear.fused import FusedActivation
from workers.kernels.linear.quantized_rows import quantize
from workers.kernels.linear.scaled_product import scaled_linear
from workers.layers.layer import Placement
from workers.layers.norm import RMSNorm

TILE = GatedTile(32, 64, 128, 2, 4, 2)


@pytest.mark.parametrize(
    ("count", "layer", "scaled"),
    cases(
        (1, 17, 64, 256),
        [(128, 256), (384, 512), (272, 336)],
        {"outputs": "outputs", "blocks": "blocks"},
        usual={
            "1-(272, 336)-outputs",
            "17-(384, 512)-outputs",
            "17-(384, 512)-blocks",
            "64-(272, 336)-blocks",
            "256-(128, 256)-blocks",
        },
    ),
)
def test_rows_outputs_and_inputs_that_tiles_do_not_divide(
    device: torch.device, count: int, layer: tuple[int, int], scaled: Scaled
) -> None:
    in_features, out_features = layer
    grouped = scaled == "blocks"
    weight = fp8_weight(out_features, in_features, scaled, device)
    wide_rows = drawn(count, in_features, dtype=torch.float32, device=device)
    wide_rows *= torch.arange(1, count + 1, device=device)[:, None] / count
    rows = quantized(wide_rows, grouped=grouped)
    bias = drawn(out_features, dtype=torch.float16, device=device)
    product = F.linear(dequantized_rows(rows), dequantized(weight))
    given = rows, weight.values, weight.scales, TILE, torch.float16
    pairs = [
        (scaled_linear(*given), product),
        (scaled_linear(*given, bias=bias), product + bias.float()),
    ]
    if not grouped or out_features % 256 == 0:
        gate, up = (product + bias.float()).chunk(2, dim=-1)
        pairs += [(scaled_linear(*given, bias=bias, gate="silu"), F.silu(gate) * up)]
    for got, want in pairs:
        assert got.dtype == torch.float16
        torch.testing.assert_close(got.float(), want, rtol=4e-3, atol=4e-3)


class OneTile(Choices):
    def get(self, *_: Any) -> Any:
        return [[TILE], [TILE]]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("scaled", ["outputs", "blocks"])
@pytest.mark.parametrize("count", [1, 17, FP8_SKINNY_MAX_ROWS + 1])
def test_rows_are_quantised_and_multiplied(
    device: torch.device, count: int, scaled: Scaled, static: bool
) -> None:
    grouped = scaled == "blocks"
    if grouped and static:
        pytest.skip("blocks have dynamic scales")
    weight = fp8_weight(512, 272, scaled, device)._replace(
        input_scale=torch.tensor(1 / 128, device=device) if static else None, most_amax=3.0
    )
    norm = RMSNorm("n", 272, 1e-5, Placement(device, torch.float16))
    norm.parameters.weight.uniform_(0.5, 2)
    rows = drawn(count, 272, dtype=torch.float16, device=device)
    bias = drawn(512, dtype=torch.float16, device=device)

    def want(norm: RMSNorm | None) -> torch.Tensor:
        inputs = quantize(
            rows,
            norm=None if norm is None else norm.parameters,
            scale=weight.input_scale,
            grouped=grouped,
            most_amax=3.0,
        )
        return F.linear(dequantized_rows(inputs), dequantized(weight), bias.float())

    def product(gate: FusedActivation | None) -> Fp8Product:
        return Fp8Product(weight, bias, gate, torch.float16, OneTile())

    gate, up = want(norm).chunk(2, dim=-1)
    pairs = [
        (product(None)(rows), want(None)),
        (product("silu")(rows, norm), F.silu(gate) * up),
    ]
    # Triton's interpreter has no copy engine that adds.
    if count <= FP8_SKINNY_MAX_ROWS or device.type == "cuda":
        residual = drawn(count, 512, dtype=torch.float16, device=device)
        added = product(None).add_to(residual.clone(), rows)
        pairs += [(added, residual.float() + want(None))]
    for got, wanted in pairs:
        torch.testing.assert_close(got.float(), wanted, rtol=1e-2, atol=1e-2)
