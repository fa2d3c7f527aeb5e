"""Compile kernels with parts that the interpreter leaves out, for a GPU that need not be there.

Launches are taken as they come from the project's own functions, and not run. Prints a line each.
"""

import inspect
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from tests.workers.attention_problems import attention_needs
from tests.workers.kernels.attention.test_paged_decode import attend
from tests.workers.kernels.attention.test_paged_prefill import attend as attend_chunks
from tests.workers.kernels.attention.test_shared_prefix import computed
from tests.workers.kernels.experts.test_grouped_linear import fp4_weight
from tests.workers.kernels.grouped_rows import Group, grouped
from workers.attention.fp8_numbers import FP8
from workers.device.tuning import GROUPED_TILES
from workers.kernels.experts.grouped_linear import Pairs, grouped_linear, packed
from workers.kernels.linear.fused import FusedGate

HOPPER = GPUTarget("cuda", 90, 32)
NAMES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.int16: "i16",
    FP8: "fp8e4nv",
}


def compiled(self: JITFunction[Any], *given: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """In place of a launch."""
    bound = inspect.signature(self.fn).bind(
        *given, **{name: options.pop(name) for name in self.arg_names if name in options}
    )
    types: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    for place, (name, value) in enumerate(bound.arguments.items()):
        types[name] = "constexpr" if self.params[place].is_constexpr else type_of(value)
        if types[name] == "constexpr":
            constants[(place,)] = value
    source = ASTSource(self, types, constants)
    kernel = triton.compile(source, target=HOPPER, options=options)
    print(self.__name__, *types.values(), len(kernel.asm["cubin"]))


def type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{NAMES[value.dtype]}"
    return "constexpr" if value is None else "fp32" if isinstance(value, float) else "i32"


def attention(dtype: torch.dtype) -> None:
    """Over a cache in FP8: decode rows, chunks of prompts, prefixes that rows share."""
    want = attention_needs((8, 2, 64), dtype=dtype, block_size=64, fp8_cache=True, softcap=9.0)
    problem = grouped([Group(64, [(3, 1), (0, 1)])], want)
    attend(problem)
    attend(problem, prefix=computed(problem, 1))
    attend_chunks(problem)


def experts() -> None:
    """In MXFP4, with the gate of gpt-oss."""
    device, tile = torch.device("cpu"), GROUPED_TILES[0]
    weight, order = packed(fp4_weight(2 * 256, 128, device)), torch.arange(4, dtype=torch.int32)
    pairs = Pairs(order, torch.tensor([1, 4], dtype=torch.int32), 1, of_tokens=True)
    rows, gate = torch.zeros(4, 128, dtype=torch.bfloat16), FusedGate("clamped", 1.7, 7.0)
    grouped_linear(rows, weight, pairs, tile, torch.bfloat16, gate=gate)


if __name__ == "__main__":
    with patch.object(JITFunction, "run", compiled):
        for dtype in (torch.bfloat16, torch.float32):
            attention(dtype)
        experts()
