"""Products by weights in FP8 on a GPU: what they compute, captured too, and by which kernels."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from tests.workers.kernels.linear.fp8_weights import (
    Scaled,
    dequantized,
    dequantized_rows,
    fp8_weight,
)
from workers.device.choices import Choices
from workers.device.tuning import (
    FP8_BLOCKS_TILE,
    FP8_SKINNY_MAX_ROWS,
    FP8_TILES,
    GatedTile,
)
from workers.kernels.linear.fused import Fp8Weight, FusedActivation
from workers.layers.layer import Placement
from workers.layers.norm import RMSNorm

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
INPUTS, OUTPUTS = 1024, 2048
ROWS = [1, 17, 64, 256, 2048]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def choices() -> Choices:
    """One for all, so that each shape is measured once."""
    return Choices()


@pytest.fixture
def norm() -> RMSNorm:
    layer = RMSNorm("n", INPUTS, 1e-5, Placement(DEVICE, DTYPE))
    layer.parameters.weight.uniform_(0.5, 2)
    return layer


def weight_of(scaled: Scaled, *, static: bool = False) -> Fp8Weight:
    weight = fp8_weight(OUTPUTS, INPUTS, scaled, DEVICE)
    return weight._replace(input_scale=torch.tensor(1 / 64, device=DEVICE) if static else None)


def multiplied(rows: torch.Tensor, weight: Fp8Weight, norm: RMSNorm | None = None) -> torch.Tensor:
    """What `rows` become, in float32."""
    from workers.kernels.linear.quantized_rows import quantize

    parameters = None if norm is None else norm.parameters
    scale, grouped = weight.input_scale, weight.in_blocks
    inputs = quantize(rows, norm=parameters, scale=scale, grouped=grouped)
    return F.linear(dequantized_rows(inputs), dequantized(weight))


def captured(run: Callable[[], torch.Tensor]) -> torch.Tensor:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    graph.replay()
    return out


def kernels_of(run: Callable[[], object]) -> str:
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        run()
        torch.cuda.synchronize()
    return " ".join(event.key for event in profiled.key_averages())


@pytest.mark.parametrize(
    ("scaled", "static"), [("outputs", False), ("outputs", True), ("blocks", False)]
)
@pytest.mark.parametrize("gate", [None, "silu"])
@pytest.mark.parametrize("count", ROWS)
def test_products_captured_and_not(
    choices: Choices,
    norm: RMSNorm,
    count: int,
    gate: FusedActivation | None,
    scaled: Scaled,
    static: bool,
) -> None:
    from workers.kernels.linear.fp8_product import Fp8Product, obstacle

    weight = weight_of(scaled, static=static)
    assert obstacle(weight, gated=gate is not None) is None
    product = Fp8Product(weight, None, gate, DTYPE, choices)
    rows = torch.randn(count, INPUTS, device=DEVICE).to(DTYPE)
    want = multiplied(rows, weight, norm)
    if gate:
        first, second = want.chunk(2, dim=1)
        want = F.silu(first) * second
    got = product(rows, norm)
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=3e-2)
    assert torch.equal(captured(lambda: product(rows, norm)), got)
    if gate is None:
        residual = torch.randn(count, OUTPUTS, device=DEVICE).to(DTYPE)
        want = residual.float() + multiplied(rows, weight)
        out = captured(lambda: product.add_to(residual, rows))
        torch.testing.assert_close(out.float(), want, rtol=2e-2, atol=3e-2)


@pytest.mark.parametrize(
    ("scaled", "tile"),
    [("outputs", tile) for tile in (None, *FP8_TILES)]
    + [("blocks", tile) for tile in (None, FP8_BLOCKS_TILE)],
)
def test_each_way_at_ragged_rows(scaled: Scaled, tile: GatedTile | None) -> None:
    from workers.kernels.linear.fp8_product import multiply
    from workers.kernels.linear.quantized_rows import quantize

    weight = weight_of(scaled)
    for count in (17, 64, 333, 2048):
        rows = torch.randn(count, INPUTS, device=DEVICE).to(DTYPE)
        quantized = quantize(rows, grouped=scaled == "blocks")
        residual = torch.randn(count, OUTPUTS, device=DEVICE).to(DTYPE)
        want = F.linear(dequantized_rows(quantized), dequantized(weight))
        got = multiply(quantized, weight, tile, DTYPE)
        torch.testing.assert_close(got.float(), want, rtol=1e-2, atol=2e-2)
        summed = multiply(quantized, weight, tile, DTYPE, residual=residual.clone())
        torch.testing.assert_close(summed.float(), residual + want, rtol=2e-2, atol=4e-2)


@pytest.mark.parametrize("scaled", ["outputs", "blocks"])
def test_which_kernels_run(choices: Choices, norm: RMSNorm, scaled: Scaled) -> None:
    from workers.kernels.linear.fp8_product import Fp8Product

    product = Fp8Product(weight_of(scaled), None, None, DTYPE, choices)
    for count in ROWS:
        rows = torch.randn(count, INPUTS, device=DEVICE).to(DTYPE)
        product(rows, norm)
        names = kernels_of(lambda rows=rows: product(rows, norm))
        print(count, names)
        few = count <= FP8_SKINNY_MAX_ROWS
        assert "_quantize" in names
        assert ("_few_rows" in names) == few
        # Whichever was chosen multiplies in FP8: cuBLAS's kernels name the type of operands.
        assert few or "_scaled_linear" in names or "e4m3" in names or "nvjet" in names
