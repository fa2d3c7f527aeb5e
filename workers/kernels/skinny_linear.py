"""Linear layers of a few rows, whose time is that of reading the weight.

A program owns some of the outputs and streams their weights once, for all rows. What stands before
and after the product is done on the way: the normalisation of its input, the gate, the residual.
Programmatic dependent launch (griddepcontrol, CUDA 12.3) lets a program begin to read its weights
while the kernel before it still runs: that gap, some 3 us, is a tenth of a small layer's time.
"""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.kernels.launch import pdl
from workers.layers.fused import Norm

_MOST_ROWS = 32
"""Beyond, the product is no longer bound by reading the weight, and the library's is as good."""


class Tile(NamedTuple):
    """Outputs a program, inputs an iteration, warps and pipeline stages."""

    outputs: int
    inputs: int
    warps: int
    stages: int


def prefers(rows: int, *, normed: bool) -> bool:
    """Whether `linear` beats cuBLAS and separate kernels, measured on an H200 (RESULTS.md).

    With several rows, normalising them once costs less than in every program.
    """
    return rows == 1 or (rows <= _MOST_ROWS and not normed)


def linear(
    rows: torch.Tensor,
    weight: torch.Tensor,
    *,
    norm: Norm | None = None,
    residual: torch.Tensor | None = None,
    gated: bool = False,
    tile: Tile | None = None,
) -> torch.Tensor:
    """[N, in] -> [N, out]: `norm(rows) @ weight.T`, plus `residual` [N, out], which is overwritten
    with the result and returned.

    `gated`: the weight's first half are gates, the result is silu(gate) * up, [N, out / 2].
    """
    count, in_features = rows.shape
    out_features = weight.shape[0] // 2 if gated else weight.shape[0]
    out = residual if residual is not None else rows.new_empty(count, out_features)
    tile = tile or _tile(rows, gated=gated)
    arguments = [rows, weight, out, *(norm or (weight, 0.0)), out_features, in_features]
    kernel, options = _one_row, {}
    if count > 1:
        kernel, options = _few_rows, {"ROWS": max(16, triton.next_power_of_2(count))}
        arguments += [count, rows.stride(0)]
    kernel[(triton.cdiv(out_features, tile.outputs),)](
        *arguments,
        NORM=norm is not None,
        RESIDUAL=residual is not None,
        GATED=gated,
        OUTPUTS=tile.outputs,
        INPUTS=tile.inputs,
        num_warps=tile.warps,
        num_stages=tile.stages,
        **options,
        **pdl(rows),
    )
    return out


def _tile(rows: torch.Tensor, *, gated: bool) -> Tile:
    """Measured on an H200 over the layers of an 8B Llama (RESULTS.md)."""
    if len(rows) == 1:
        return Tile(8, 512, 4, 1) if gated else Tile(8, 1024, 4, 1)
    if rows.itemsize > 2:
        return Tile(32, 64, 4, 4)  # more does not fit in shared memory
    return Tile(64, 128, 4, 3) if gated else Tile(64, 128, 4, 8)


@triton.jit
def _one_row(
    rows, weight, out, norm_weight, eps, out_features, in_features,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inputs = tl.arange(0, INPUTS)
    inside = outputs < out_features
    first = weight + outputs.to(tl.int64)[:, None] * in_features + inputs[None, :]
    second = first + out_features.to(tl.int64) * in_features
    mask = inside[:, None] & (inputs[None, :] < in_features)
    tile = tl.load(first, mask=mask, other=0.0)
    up_tile = tl.load(second, mask=mask, other=0.0) if GATED else tile
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    total = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    up_total = tl.zeros((OUTPUTS, INPUTS), tl.float32)
    squares = tl.zeros((INPUTS,), tl.float32)
    for start in range(0, in_features, INPUTS):
        here = start + inputs
        row = tl.load(rows + here, mask=here < in_features, other=0.0).to(tl.float32)
        if NORM:
            squares += row * row
            row *= tl.load(norm_weight + here, mask=here < in_features, other=0.0).to(tl.float32)
        total += tile.to(tl.float32) * row[None, :]
        if GATED:
            up_total += up_tile.to(tl.float32) * row[None, :]
        mask = inside[:, None] & (here[None, :] + INPUTS < in_features)
        tile = tl.load(first + start + INPUTS, mask=mask, other=0.0)
        if GATED:
            up_tile = tl.load(second + start + INPUTS, mask=mask, other=0.0)
    result = tl.sum(total, axis=1)
    up = tl.sum(up_total, axis=1)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=0) / in_features + eps)
        result *= scale
        up *= scale
    if GATED:
        result = result / (1 + tl.exp(-result)) * up
    if RESIDUAL:
        result += tl.load(out + outputs, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + outputs, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _few_rows(
    rows, weight, out, norm_weight, eps, out_features, in_features, count, stride,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    outputs = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    inputs = tl.arange(0, INPUTS)
    which = tl.arange(0, ROWS)
    inside, present = outputs < out_features, which < count
    first = weight + outputs.to(tl.int64)[:, None] * in_features + inputs[None, :]
    second = first + out_features.to(tl.int64) * in_features
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    up_total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for start in range(0, in_features, INPUTS):
        here = start + inputs
        known = here < in_features
        columns = tl.load(
            rows + which[None, :] * stride + here[:, None],
            mask=known[:, None] & present[None, :], other=0.0,
        )  # fmt: skip
        tile = tl.load(first + start, mask=inside[:, None] & known[None, :], other=0.0)
        if NORM:
            wide = columns.to(tl.float32)
            squares += tl.sum(wide * wide, axis=0)
            scale = tl.load(norm_weight + here, mask=known, other=0.0).to(tl.float32)
            columns = (wide * scale[:, None]).to(tile.dtype)
        total = tl.dot(tile, columns, total, input_precision="ieee")
        if GATED:
            tile = tl.load(second + start, mask=inside[:, None] & known[None, :], other=0.0)
            up_total = tl.dot(tile, columns, up_total, input_precision="ieee")
    if NORM:
        factor = tl.rsqrt(squares / in_features + eps)[None, :]
        total *= factor
        up_total *= factor
    if GATED:
        total = total / (1 + tl.exp(-total)) * up_total
    places = out + which[None, :].to(tl.int64) * out_features + outputs[:, None]
    mask = inside[:, None] & present[None, :]
    if RESIDUAL:
        total += tl.load(places, mask=mask, other=0.0).to(tl.float32)
    tl.store(places, total.to(out.dtype.element_ty), mask=mask)
