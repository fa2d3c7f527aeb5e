"""Activation functions inside of kernels."""

# triton has no types.
# pyright: basic

import triton
import triton.language as tl


@triton.jit
def activated(values, FUNCTION: tl.constexpr):
    """FUNCTION, a `FusedActivation`, of values in float32."""
    if FUNCTION == "silu":
        result = values / (1 + tl.exp(-values))
    elif FUNCTION == "gelu":
        result = 0.5 * values * (1 + tl.erf(values * 0.7071067811865476))
    else:
        tl.static_assert(FUNCTION == "gelu_tanh")
        # (1 + tanh(u)) / 2 is the sigmoid of 2 u, where u = sqrt(2 / pi) (x + 0.044715 x^3).
        twice = 1.5957691216057308 * (values + 0.044715 * values * values * values)
        result = values / (1 + tl.exp(-twice))
    return result
