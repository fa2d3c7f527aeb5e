"""Counters in device memory that CUDA streams write and wait for, in stream order.

The driver's stream memory operations: a wait occupies no processor of the GPU, unlike a kernel that
spins, and the value may be written by another GPU. (CUDA driver API, "Stream Memory Operations".)
"""

import ctypes

import torch

_DRIVER = "libcuda.so.1"
_FLAGS = 0
"""A wait is for a value that is greater or equal, and a write is preceded by a memory barrier:
CU_STREAM_WAIT_VALUE_GEQ and CU_STREAM_WRITE_VALUE_DEFAULT."""

_HAS_64_BIT_OPERATIONS = 122  # CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS


class StreamCounterError(RuntimeError):
    """The driver refuses an operation on a stream; the message has its number."""


class StreamCounter:
    """An unsigned number of 64 bits that only rises."""

    def __init__(self, memory: torch.Tensor) -> None:
        """`memory` uint8[8], on this device or in a peer's memory."""
        self._driver = ctypes.CDLL(_DRIVER)
        self._address = ctypes.c_uint64(memory.data_ptr())
        self._memory = memory  # must outlive the operations

    def write(self, value: int) -> None:
        """Set it once all work that the current stream has been given is done and visible."""
        self._call("cuStreamWriteValue64_v2", value)

    def wait(self, value: int) -> None:
        """Work that the current stream is given later begins once the counter is `value` or
        more."""
        self._call("cuStreamWaitValue64_v2", value)

    def _call(self, name: str, value: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        error = getattr(self._driver, name)(stream, self._address, ctypes.c_uint64(value), _FLAGS)
        if error:
            raise StreamCounterError(f"{name} failed with CUDA error {error}")


def has_stream_counters(device: torch.device) -> bool:
    """Whether streams of this GPU can write and wait for 64-bit values."""
    driver, found = ctypes.CDLL(_DRIVER), ctypes.c_int()
    error = driver.cuDeviceGetAttribute(
        ctypes.byref(found), _HAS_64_BIT_OPERATIONS, device.index or 0
    )
    return not error and bool(found.value)
