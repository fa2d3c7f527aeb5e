"""Rows of a table by index: one program a row."""

# triton has no types, and takes a launch's options among a kernel's arguments.
# pyright: basic, reportCallIssue=false, reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from workers.kernels.launch import pdl


def embedding(ids: torch.Tensor, weight: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """weight[ids] * scale: int64[N] within [0, count), [count, size] contiguous -> [N, size].

    The product is computed in float32 and rounded once.
    """
    count, size = len(ids), weight.shape[1]
    out = torch.empty((count, size), dtype=weight.dtype, device=weight.device)
    block = triton.next_power_of_2(size)
    _embed[(count,)](
        ids,
        weight,
        out,
        scale,
        SCALED=scale != 1,
        SIZE=size,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 8),
        **pdl(weight),
    )
    return out


@triton.jit(do_not_specialize=["ids"])
def _embed(
    ids, weight, out, scale,
    SCALED: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < SIZE
    values = tl.load(weight + tl.load(ids + row) * SIZE + columns, mask=inside)
    if SCALED:
        values = (values.to(tl.float32) * scale).to(values.dtype)
    tl.store(out + row * SIZE + columns, values, mask=inside)
