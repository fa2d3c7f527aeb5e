"""Whether kernels may have instructions of a GPU: Triton's interpreter has no assembler."""

# pyright: basic

import triton.language as tl
from triton import knobs

ASSEMBLED = tl.constexpr(not knobs.runtime.interpret)
