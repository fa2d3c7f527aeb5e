"""f(gate) * up: each program computes a block of one row."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.device.tuning import ACTIVATION_MUL_BLOCK
from workers.kernels.launch import pdl
from workers.kernels.linear.activated import activated
from workers.layers.fused import FusedActivation


def activation_mul(gate_up: torch.Tensor, function: FusedActivation) -> torch.Tensor:
    """f(gate) * up (Shazeer 2020, arXiv:2002.05202): [N, 2 F], gate first, -> [N, F]."""
    count, width = gate_up.shape
    out = torch.empty((count, width // 2), dtype=gate_up.dtype, device=gate_up.device)
    _activation_mul[(count, triton.cdiv(width // 2, ACTIVATION_MUL_BLOCK))](
        gate_up,
        out,
        gate_up.stride(0),
        SIZE=width // 2,
        FUNCTION=function,
        BLOCK=ACTIVATION_MUL_BLOCK,
        num_warps=4,
        **pdl(gate_up),
    )
    return out


@triton.jit
def _activation_mul(
    gate_up, out, stride, SIZE: tl.constexpr, FUNCTION: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gates = gate_up + row * stride + columns
    gate = tl.load(gates, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gates + SIZE, mask=inside, other=0.0).to(tl.float32)
    product = activated(gate, FUNCTION) * up
    tl.store(out + row * SIZE + columns, product.to(out.dtype.element_ty), mask=inside)
