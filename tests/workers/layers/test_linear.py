"""Linear layers on a CPU, beside torch's own."""

from typing import get_args

import pytest
import torch
import torch.nn.functional as F

from workers.contract.model_config import ActivationName
from workers.contract.quantization import FROM_16_BITS
from workers.layers.activations import ACTIVATIONS
from workers.layers.layer import Placement
from workers.layers.linear import Linear

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", get_args(ActivationName))
@torch.inference_mode()
def test_a_function_of_the_product(name: ActivationName, bias: bool, dtype: torch.dtype) -> None:
    """Rounded once where oneDNN computes it, else twice."""
    function, placement = ACTIVATIONS[name], Placement(torch.device("cpu"), dtype)
    layer = Linear(40, {"up": 56}, placement, bias=bias, function=function)
    weights = layer.weights()
    for weight in weights.values():
        weight.normal_()
    rows = torch.randn(9, 40).to(dtype)
    own = (weight.float() for weight in weights.values())
    wanted = function(F.linear(rows.float(), *own))
    layer.pack()
    torch.testing.assert_close(layer(rows), wanted.to(dtype), rtol=2**-6, atol=2e-5)


@torch.inference_mode()
def test_a_function_of_a_product_in_fp8() -> None:
    placement = Placement(torch.device("cpu"), torch.float32, quantization=FROM_16_BITS)
    layers = [
        Linear(40, {"up": 56}, placement, bias=True, function=function)
        for function in (None, torch.tanh)
    ]
    for layer in layers:
        torch.manual_seed(1)
        for weight in layer.weights().values():
            weight.normal_()
        layer.pack()
    rows = torch.randn(9, 40)
    plain, other = (layer(rows) for layer in layers)
    torch.testing.assert_close(other, plain.tanh(), rtol=0, atol=1e-6)
