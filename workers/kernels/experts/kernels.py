"""The kernels of experts that layers use on CUDA, to be named without Triton."""

from functools import partial

import torch

from workers.device.choices import Choices


class ExpertKernels:
    """Functions and layers of experts, which import Triton.

    product       by the fastest implementation, one of the `choices`; in FP8 on a GPU without an
                  `fp8_obstacle`
    routing       functions of the choice of experts, and of the sum of their outputs
    """

    def __init__(self, choices: Choices) -> None:
        from workers.kernels.experts import grouped_product, routing  # noqa: PLC0415
        from workers.kernels.linear import fp8_product  # noqa: PLC0415

        self.product = partial(grouped_product.GroupedProduct, choices=choices)
        self.fp8_obstacle, self.routing = fp8_product.gpu_obstacle, routing


def expert_kernels(device: torch.device, choices: Choices) -> ExpertKernels | None:
    """The kernels of a CUDA device. None elsewhere."""
    return ExpertKernels(choices) if device.type == "cuda" else None
