"""A linear layer's product by a weight in FP8.

Rows are quantised, in the kernel that norms them. Reading the weight bounds the time of few; more
are multiplied by the fastest of cuBLAS and the own kernel's tiles, measured once for each shape at
the numbers of rows in `FP8_MEASURED_ROWS`.
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
from workers.device.tuning import (
    FP8_BLOCKS_TILE,
    FP8_MEASURED_ROWS,
    FP8_SKINNY_MAX_ROWS,
    FP8_TILES,
    GatedTile,
)
from workers.kernels.linear import skinny_linear
from workers.kernels.linear.fused import Fp8Weight, FusedActivation, Normed
from workers.kernels.linear.quantized_rows import GROUP, QuantizedRows, quantize
from workers.kernels.linear.rowwise import activation_mul
from workers.kernels.linear.scaled_product import scaled_linear

_ADA, _HOPPER = (8, 9), (9, 0)

_logger = logging.getLogger(__name__)


def obstacle(weight: Fp8Weight, *, gated: bool) -> str | None:
    """Why `Fp8Product` cannot multiply by `weight` on its GPU. None if it can."""
    out_features, in_features = weight.values.shape
    capability = torch.cuda.get_device_capability(weight.values.device)
    if reason := gpu_obstacle(weight.values.device):
        return reason
    if weight.in_blocks and capability[0] != _HOPPER[0]:
        return "weights in FP8 with scales of blocks need a Hopper (H100, H200)"
    whole = 2 * GROUP if gated and weight.in_blocks else 32 if gated else 16
    if in_features % 16 or out_features % whole:
        return f"{in_features} inputs and {out_features} outputs are no multiples of 16 and {whole}"
    return None


def gpu_obstacle(device: torch.device) -> str | None:
    """Why no kernel multiplies in FP8 on this GPU. None if some can."""
    if torch.cuda.get_device_capability(device) < _ADA:
        return "this GPU has no products in FP8, an Ada (L4, L40S) or a Hopper (H100, H200) has"
    return None


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
        layer = weight.values.shape, weight.scales.shape, gate, dtype
        device, kind = weight.values.device, list[list[GatedTile | None]]
        measure = partial(_ways, *layer, device)
        self._ways = choices.get("FP8 product", kind, measure, device, *layer)

    def __call__(self, rows: torch.Tensor, norm: Normed | None = None) -> torch.Tensor:
        return self._product(rows, norm, None)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """`residual` [N, out], which is overwritten with the result, plus the product."""
        return self._product(rows, None, residual)

    def _product(
        self, rows: torch.Tensor, norm: Normed | None, residual: torch.Tensor | None
    ) -> torch.Tensor:
        weight = self._weight
        quantized = quantize(
            rows,
            norm=None if norm is None else norm.parameters,
            scale=weight.input_scale,
            grouped=weight.in_blocks,
            most_amax=weight.most_amax,
        )
        around = {"bias": self._bias, "gate": self._gate, "residual": residual}
        if len(rows) <= FP8_SKINNY_MAX_ROWS:
            return skinny_linear.fp8_linear(quantized, weight, rows.dtype, **around)
        ways = self._ways[residual is not None]
        index = min(bisect_left(FP8_MEASURED_ROWS, len(rows)), len(ways) - 1)
        return multiply(quantized, weight, ways[index], rows.dtype, **around)


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
    blocks, kind, count = weight.in_blocks, ScalingType.RowWise, len(rows.values)
    if blocks:
        rows = rows.padded()
    product = F.scaled_mm(
        rows.values,
        weight.values.t(),
        rows.scales,
        ScalingType.BlockWise1x128 if blocks else kind,
        weight.scales.t() if blocks else weight.scales[None],
        ScalingType.BlockWise128x128 if blocks else kind,
        bias=bias,
        output_dtype=dtype,
        use_fast_accum=not blocks,
    )[:count]
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
) -> list[list[GatedTile | None]]:
    """The fastest way for each of `FP8_MEASURED_ROWS`: a tile, or None for cuBLAS. First of the
    product, then, without a gate, of adding it to a residual. The numbers are random: the bits that
    change decide a processor's power, and so its speed."""
    values = torch.randn(shape, dtype=dtype, device=device).to(torch.float8_e4m3fn)
    weight = Fp8Weight(values, torch.ones(scales, device=device))
    candidates = _candidates(weight, gate)
    ways: list[list[GatedTile | None]] = [[], []]
    for count in FP8_MEASURED_ROWS:
        rows = torch.randn(count, shape[1], dtype=dtype, device=device)
        quantized = quantize(rows, grouped=weight.in_blocks)
        residuals = [None] if gate else [None, rows.new_zeros(count, shape[0])]
        for chosen, residual in zip(ways, residuals, strict=False):
            run = partial(multiply, quantized, weight, dtype=dtype, gate=gate, residual=residual)
            seconds = [watch.seconds(partial(run, tile=tile)) for tile in candidates]
            chosen.append(candidates[seconds.index(min(seconds))])
    _logger.info(
        "FP8 product, %d to %d features: own kernel for %d of %d numbers of tokens",
        *(shape[1], shape[0], sum(tile is not None for tile in ways[0]), len(ways[0])),
    )
    return ways


def _candidates(weight: Fp8Weight, gate: FusedActivation | None) -> list[GatedTile | None]:
    """The ways that a GPU has to this product."""
    if weight.in_blocks:
        # cuBLAS pads a column of scales of blocks to four, which no checkpoint does.
        return [FP8_BLOCKS_TILE if weight.scales.shape[1] % 4 else None]
    if torch.cuda.get_device_capability(weight.values.device)[0] != _HOPPER[0]:
        return [None]
    halves = 1 if gate is None else 2
    return [None, *(tile._replace(outputs=tile.outputs // halves) for tile in FP8_TILES)]
