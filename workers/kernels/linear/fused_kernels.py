"""The kernels that layers use, under the names of `workers.layers.fused.FusedKernels`."""

from workers.kernels.linear.embedding_lookup import embedding
from workers.kernels.linear.gated_matmul_selection import GatedProduct as gated_product  # noqa: N813
from workers.kernels.linear.layer_norm import layer_norm
from workers.kernels.linear.rms_norm import add_rms_norm, rms_norm
from workers.kernels.linear.skinny_linear import linear as skinny_linear
from workers.kernels.linear.skinny_linear import prefers

__all__ = [
    "add_rms_norm",
    "embedding",
    "gated_product",
    "layer_norm",
    "prefers",
    "rms_norm",
    "skinny_linear",
]
