"""The kernels that layers use, by the names of `workers.layers.fused.FusedKernels`."""

from workers.kernels.embedding import embedding
from workers.kernels.gated_product import GatedProduct as gated_product  # noqa: N813
from workers.kernels.norm import rms_norm
from workers.kernels.skinny_linear import linear as skinny_linear
from workers.kernels.skinny_linear import prefers

__all__ = ["embedding", "gated_product", "prefers", "rms_norm", "skinny_linear"]
