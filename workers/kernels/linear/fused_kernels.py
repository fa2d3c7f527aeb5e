"""The kernels that layers use, under one name."""

from workers.kernels.linear import rowwise
from workers.kernels.linear import skinny_linear as skinny
from workers.kernels.linear.gated_product import GatedProduct


class FusedKernels:
    """Functions of rows [N, size], of one dtype.

    gated_product  may measure which implementation is fastest
    prefers        whether `skinny_linear` beats the library's product for a number of rows, with or
                   without a norm before it
    """

    embedding = staticmethod(rowwise.embedding)
    rms_norm = staticmethod(rowwise.rms_norm)
    add_rms_norm = staticmethod(rowwise.add_rms_norm)
    layer_norm = staticmethod(rowwise.layer_norm)
    gated_product = GatedProduct
    prefers = staticmethod(skinny.prefers)
    skinny_linear = staticmethod(skinny.linear)
