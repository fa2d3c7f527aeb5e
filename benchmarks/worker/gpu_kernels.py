"""Fused kernels on CUDA, in microseconds of the GPU, at the sizes of real models in bfloat16; the
note is what the same takes as separate kernels, or without what is fused."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from typing import NamedTuple

import torch
import torch.nn.functional as F

from benchmarks.report import Figure, NotMeasuredError
from workers.device.choices import Choices
from workers.device.timing import Stopwatch
from workers.kernels.linear.fused import FusedActivation, FusedKernels, Norm, fused_kernels
from workers.layers.norm import QKNorm
from workers.layers.rotary import RotationTable

_CUDA = torch.device("cuda")
_WEIGHT_BYTES = 1 << 28
"""Copies of a weight in turn, so that none is found in the L2 cache."""

Run = Callable[[], object]


class Compared(NamedTuple):
    """A fused kernel, and what it replaces."""

    name: str
    fused: Run
    plain: Run


def measure() -> list[Figure]:
    """Raises NotMeasuredError without a CUDA device."""
    if (kernels := fused_kernels(_CUDA, Choices())) is None or not torch.cuda.is_available():
        raise NotMeasuredError("there is no CUDA device")
    cases = [*_rotations(), *_products(kernels), *_gates(kernels), *_norms(kernels)]
    return [_figure(case) for case in cases]


def _figure(case: Compared) -> Figure:
    watch = Stopwatch(_CUDA)
    fused, plain = (watch.seconds(run) * 1e6 for run in (case.fused, case.plain))
    return Figure(case.name, fused, "us", note=f"{plain:.1f} us without")


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=_CUDA)


def _rotations() -> Iterator[Compared]:
    # Imported here, because a machine without a GPU may have no Triton.
    from workers.kernels.attention.kv_cache import KVTarget, rotate_and_cache  # noqa: PLC0415

    for model, heads, kv_heads, size in (("Qwen3-8B", 32, 8, 128), ("Gemma-3-4B", 8, 4, 256)):
        rotation = RotationTable(torch.rand(8192, size, device=_CUDA), size // 2)
        norm = QKNorm(_drawn(size), _drawn(size), 1e-6)
        for rows in (1, 32, 256, 8192):
            qkv = _drawn(rows, heads + 2 * kv_heads, size)
            indices = torch.arange(rows, device=_CUDA)
            keys, values = _drawn(2, -(-rows // 128), 128, kv_heads, size)

            target = KVTarget(indices, keys, values)
            run = partial(rotate_and_cache, qkv, rotation, indices, heads, qkv, target)
            name = f"rotation with QK-norm, {model}, {rows} rows"
            yield Compared(name, partial(run, norm), run)


def _products(kernels: FusedKernels) -> Iterator[Compared]:
    inputs, outputs = 3584, 4608
    weights = cycle(
        [_drawn(outputs, inputs) for _ in range(_WEIGHT_BYTES // inputs // outputs // 2)]
    )
    bias, norm = _drawn(outputs), Norm(_drawn(inputs), 1e-6)
    for count in (1, 8, 16):
        rows = _drawn(count, inputs)

        def run(
            bias: torch.Tensor | None, rows: torch.Tensor = rows, norm: Norm = norm
        ) -> torch.Tensor:
            return kernels.skinny_linear(rows, next(weights), bias=bias, norm=norm)

        name = f"QKV with norm and bias, Qwen2.5-7B, {count} rows"
        yield Compared(name, partial(run, bias), partial(run, None))


def _gates(kernels: FusedKernels) -> Iterator[Compared]:
    inputs, outputs = 2560, 10240
    weights = cycle([_drawn(2 * outputs, inputs) for _ in range(4)])
    norm = Norm(_drawn(inputs), 1e-6)
    for count in (1, 8, 16):
        rows = _drawn(count, inputs)

        def run(gate: FusedActivation, rows: torch.Tensor = rows) -> torch.Tensor:
            return kernels.skinny_linear(rows, next(weights), norm=norm, gate=gate)

        name = f"gate of GELU (SiLU beside), Gemma-3-4B, {count} rows"
        yield Compared(name, partial(run, "gelu_tanh"), partial(run, "silu"))
    weight = next(weights)
    gelu = kernels.gated_product(weight, None, "gelu_tanh")
    silu = kernels.gated_product(weight, None, "silu")
    for count in (256, 1024, 8192):
        rows = _drawn(count, inputs)
        name = f"gate of GELU (SiLU beside), Gemma-3-4B, {count} rows"
        yield Compared(name, partial(gelu, rows), partial(silu, rows))


def _norms(kernels: FusedKernels) -> Iterator[Compared]:
    size, eps = 1024, 1e-5
    weight, bias = _drawn(size), _drawn(size)
    for count in (512, 4096, 32768):
        rows, residual = _drawn(count, size), _drawn(count, size)
        yield Compared(
            f"LayerNorm of a sum, XLM-R large, {count} rows",
            lambda rows=rows, residual=residual: kernels.layer_norm(
                rows, weight, bias, eps, residual=residual
            ),
            lambda rows=rows, residual=residual: F.layer_norm(
                residual + rows, (size,), weight, bias, eps
            ),
        )
        yield Compared(
            f"LayerNorm, {count} rows of 1,024",
            lambda rows=rows: kernels.layer_norm(rows, weight, bias, eps),
            lambda rows=rows: F.layer_norm(rows, (size,), weight, bias, eps),
        )
    wide = _drawn(2560)
    for count in (1, 32, 8192):
        rows, residual = _drawn(count, 2560), torch.zeros_like(_drawn(count, 2560))
        yield Compared(
            f"residual + RMSNorm, Gemma-3-4B, {count} rows",
            lambda rows=rows, residual=residual: kernels.rms_norm(rows, wide, eps, residual),
            lambda rows=rows, residual=residual: residual + kernels.rms_norm(rows, wide, eps),
        )
