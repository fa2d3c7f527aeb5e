"""Arrays on their way to the device."""

import numpy as np
import pytest
import torch

from workers.device.transfer import to_device


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
def test_arrays_of_any_shape_and_type_reach_the_device(device: str) -> None:
    arrays = [
        np.arange(5, dtype=np.int32),
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.array([1, 2, 3], np.uint8),
        np.zeros((0, 4), np.int32),
        np.array([0.5, np.nan], np.float32),
    ]
    tensors = to_device(arrays, torch.device(device))
    for array, tensor in zip(arrays, tensors, strict=True):
        assert tensor.device.type == device
        assert tensor.shape == array.shape
        np.testing.assert_array_equal(tensor.cpu().numpy(), array, strict=True)
