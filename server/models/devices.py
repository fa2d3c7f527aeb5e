"""The cores and CUDA devices of this machine (without torch), and the devices of an engine."""

import ctypes
import functools
import os
from importlib.metadata import version

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""Names the GPUs that a process sees, by number or UUID; the first is its cuda:0."""

_DRIVER = "libcuda.so.1"


class DeviceError(ValueError):
    """A device that this machine does not have; one line says what it has."""


def available_cores() -> int:
    """CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@functools.cache
def cuda_memory() -> tuple[int, ...]:
    """Total bytes of each CUDA device that the driver shows; empty without a driver."""
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return ()
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_total_memory(driver, ordinal) for ordinal in range(count.value))


def _total_memory(driver: ctypes.CDLL, ordinal: int) -> int:
    device, total = ctypes.c_int(), ctypes.c_size_t()
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    return total.value


def resolve_device(name: str, stages: int) -> str:
    """The device of the first of `stages` stages: `cpu`, or `cuda:N`; the others use the next ones.

    `auto` is CUDA where there are enough devices and torch can use them, else the CPU.
    Raises DeviceError.
    """
    present = len(cuda_memory())
    if name == "auto":
        usable = present >= stages and not version("torch").endswith("+cpu")
        name = "cuda" if usable else "cpu"
    if name == "cpu":
        return name
    first = int(name.partition(":")[2] or 0)
    if first + stages > present:
        last = f" to cuda:{first + stages - 1}" if stages > 1 else ""
        raise DeviceError(f"this machine has {present} CUDA devices, not cuda:{first}{last}")
    return f"cuda:{first}"


def visible_device(first: str, stage: int) -> str:
    """CUDA_VISIBLE_DEVICES for the worker of `stage`: only its GPU, or empty for a CPU.

    `first` is the device of the first stage, `cpu` or `cuda:N`; the others use the next ones.
    """
    kind, _, ordinal = first.partition(":")
    if kind == "cpu":
        return ""
    own = int(ordinal) + stage
    visible = os.environ.get(VISIBLE_DEVICES)
    return str(own) if visible is None else visible.split(",")[own].strip()
