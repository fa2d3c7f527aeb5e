"""The kernels that layers use, by the names of `workers.layers.fused.FusedKernels`."""

from workers.kernels.activation import silu_mul
from workers.kernels.gated_linear import fuses_gate, gated_linear
from workers.kernels.norm import rms_norm
from workers.kernels.skinny_linear import linear as skinny_linear
from workers.kernels.skinny_linear import prefers

__all__ = ["fuses_gate", "gated_linear", "prefers", "rms_norm", "silu_mul", "skinny_linear"]
