"""A linear layer's product by a weight in FP8.

Few rows are multiplied as they are: reading the weight bounds their time. More are quantised, in
the kernel that norms them, and multiplied on FP8 tensor cores by the fastest of cuBLAS and the own
kernel's tiles, measured once for each shape at the numbers of rows in `FP8_MEASURED_ROWS`.
"""

# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import logging
from bisect import bisect_left
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType

from workers.device.choices import Choices
from workers.device.timing import Stopwatch
from workers.device.tuning import FP8_MEASURED_ROWS, FP8_SKINNY_MAX_ROWS, FP8_TILES, GatedTile
from workers.kernels.linear import skinny_linear
from workers.kernels.linear.fused import Fp8Weight, FusedActivation, Normed
from workers.kernels.linear.quantized_rows import GROUP, QuantizedRows, quantize
from workers.kernels.linear.rowwise import activation_mul
from workers.kernels.linear.scaled_product import scaled_linear

_logger = logging.getLogger(__name__)


def can_multiply(weight: Fp8Weight, *, gated: bool = False) -> bool:
    """Whether `Fp8Product` can multiply by `weight` on its GPU: an Ada's or later, for blocks a
    Hopper's. Sizes are multiples of 16, and where blocks are `gated`, each half is whole blocks."""
    (out_features, in_features), blocks = weight.values.shape, weight.scales.dim() == 2
    capability = torch.cuda.get_device_capability(weight.values.device)
    able = capability[0] == 9 if blocks else capability >= (8, 9)
    whole = 16 if not gated else 2 * GROUP if blocks else 32
    return able and in_features % 16 == 0 and out_features % whole == 0


class Fp8Product:
    """[N, in] -> [N, out], or with a `gate`: gate(first half) * second half, [N, out / 2]."""

    def __init__(
        self,
        weight: Fp8Weight,
        bias: torch.Tensor | None,
        gate: FusedActivation | None,
        dtype: torch.dtype,
        choices: Choices,
    ) -> None:
        """`dtype` is that of rows and results. The ways are one of the `choices`, measured in some
        seconds."""
        self._weight, self._bias = weight, bias
        self._gate: FusedActivation | None = gate
        values, scales = weight.values, weight.scales
        layer, device = (values.shape, scales.shape, gate, dtype), values.device
        measure, kind = partial(_ways, *layer, device), list[GatedTile | None]
        self._tiles = choices.get("FP8 product", kind, measure, device, *layer)

    def __call__(self, rows: torch.Tensor, norm: Normed | None = None) -> torch.Tensor:
        return self._product(rows, norm, None)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`residual` [N, out], which is overwritten with the result, plus the product."""
        return self._product(rows, None, residual)

    def _product(
        self, rows: torch.Tensor, norm: Normed | None, residual: torch.Tensor | None
    ) -> torch.Tensor:
        weight, parameters = self._weight, None if norm is None else norm.parameters
        if len(rows) <= FP8_SKINNY_MAX_ROWS:
            return skinny_linear.linear(
                rows,
                weight.values,
                scales=weight.scales,
                bias=self._bias,
                norm=parameters,
                residual=residual,
                gate=self._gate,
            )
        quantized = quantize(
            rows,
            norm=parameters,
            scale=weight.input_scale,
            grouped=weight.scales.dim() == 2,
            bound=weight.ub,
        )
        tile = self._tiles[min(bisect_left(FP8_MEASURED_ROWS, len(rows)), len(self._tiles) - 1)]
        return multiply(quantized, weight, tile, rows.dtype, self._bias, self._gate, residual)


def multiply(
    rows: QuantizedRows,
    weight: Fp8Weight,
    tile: GatedTile | None,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    gate: FusedActivation | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product by the own kernel with this `tile`, or by cuBLAS without one."""
    if tile is not None:
        return scaled_linear(
            rows, weight.values, weight.scales, tile, dtype, bias=bias, gate=gate, residual=residual
        )
    blocks = weight.scales.dim() == 2
    kind = ScalingType.BlockWise1x128 if blocks else ScalingType.RowWise
    product = F.scaled_mm(
        rows.values,
        weight.values.t(),
        rows.scales,
        kind,
        weight.scales.t() if blocks else weight.scales[None],
        ScalingType.BlockWise128x128 if blocks else kind,
        bias=bias,
        output_dtype=dtype,
        use_fast_accum=not blocks,
    )
    if gate is not None:
        return activation_mul(product, gate)
    return product if residual is None else residual.add_(product)


def _ways(
    shape: tuple[int, int],
    scales: tuple[int, ...],
    gate: FusedActivation | None,
    dtype: torch.dtype,
    device: torch.device,
    watch: Stopwatch,
) -> list[GatedTile | None]:
    """The fastest way for each of `FP8_MEASURED_ROWS`: a tile, or None for cuBLAS. The numbers are
    random: the bits that change decide a processor's power, and so its speed."""
    values = torch.randn(shape, dtype=dtype, device=device).to(torch.float8_e4m3fn)
    weight = Fp8Weight(values, torch.ones(scales, device=device))
    candidates = _candidates(weight, gate)
    ways: list[GatedTile | None] = []
    for count in FP8_MEASURED_ROWS:
        rows = torch.randn(count, shape[1], dtype=dtype, device=device)
        quantized = quantize(rows, grouped=len(scales) == 2)
        seconds = {
            tile: watch.seconds(partial(multiply, quantized, weight, tile, dtype, gate=gate))
            for tile in candidates
        }
        ways.append(min(seconds, key=lambda tile: seconds[tile]))
    _logger.info(
        "FP8 product, %d to %d features: own kernel for %d of %d numbers of tokens",
        *(shape[1], shape[0], sum(tile is not None for tile in ways), len(ways)),
    )
    return ways


def _candidates(weight: Fp8Weight, gate: FusedActivation | None) -> list[GatedTile | None]:
    """The ways that a GPU has to this product."""
    blocks, device = weight.scales.dim() == 2, weight.values.device
    tiles: list[GatedTile | None] = []
    if torch.cuda.get_device_capability(device)[0] == 9:
        halves = 1 if gate is None else 2
        tiles += [tile._replace(outputs=tile.outputs // halves) for tile in FP8_TILES]
    # cuBLAS pads a column of scales of blocks to four, which no checkpoint does.
    return tiles if blocks and weight.scales.shape[1] % 4 else [None, *tiles]
