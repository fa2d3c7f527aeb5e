"""The cores and CUDA devices of this machine (without torch), and the devices of an engine."""

import ctypes
import functools
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from server.models.model_source import SetupError

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""Names the GPUs that a process sees, by number or UUID. The first is its cuda:0."""

_DRIVER = "libcuda.so.1"


def available_cores(cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """CPU cores that this process may use: its own, or a container's limit, rounded up."""
    cores = len(os.sched_getaffinity(0))
    limit = _cpu_limit(cgroups)
    return cores if limit is None else min(cores, max(1, math.ceil(limit)))


def _cpu_limit(cgroups: Path) -> float | None:
    """Seconds of CPU time in a second that a container's own control group allows, of version 2 or
    else 1. None without a limit."""
    try:
        quota, period = (cgroups / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroups / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroups / "cpu" / "cpu.cfs_period_us").read_text()
        except OSError:
            return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def cores_of_copy(
    copy: int, copies: int, nodes: Path = Path("/sys/devices/system/node")
) -> tuple[int, ...]:
    """The cores of the sockets (NUMA nodes) to which a copy of an engine on CPUs is bound. Several
    copies may share one. Empty with one node or copy, where nothing is bound."""
    own = os.sched_getaffinity(0)
    files = sorted(nodes.glob("node*/cpulist"), key=lambda file: int(file.parent.name[4:]))
    found = [cores for file in files if (cores := _cores(file.read_text()) & own)]
    if copies == 1 or len(found) < 2:
        return ()
    first, end = (number * len(found) // copies for number in (copy, copy + 1))
    return tuple(sorted(set[int]().union(*found[first : max(end, first + 1)])))


def _cores(ranges: str) -> set[int]:
    """Of "0-3,8": 0 to 3, and 8."""
    bounds = [part.partition("-") for part in ranges.strip().split(",") if part]
    return {core for low, _, high in bounds for core in range(int(low), int(high or low) + 1)}


@functools.cache
def cuda_memory() -> tuple[int, ...]:
    """Total bytes of each CUDA device that the driver shows. Empty without a driver."""
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


def gpu_names() -> list[str]:
    """The GPUs of this machine, each with its driver. Empty if nvidia-smi is absent or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = ("--query-gpu=name,driver_version", "--format=csv,noheader")
    run = subprocess.run([program, *query], capture_output=True, text=True, check=False)
    lines = [] if run.returncode else run.stdout.strip().splitlines()
    return [line.replace(", ", ", driver ", 1) for line in lines]


def resolve_devices(name: str, stages: int, copies: int = 1) -> tuple[str, ...]:
    """The device of each stage of each copy: all `cpu`, or `cuda:N` and the next ones. Raises
    SetupError."""
    stages *= copies
    present = len(cuda_memory())
    if name == "auto":
        usable = present > 0 and not version("torch").endswith("+cpu")
        name = "cuda" if usable else "cpu"
    if name == "cpu":
        return (name,) * stages
    first = int(name.partition(":")[2] or 0)
    if first + stages > present:
        last = f" to cuda:{first + stages - 1}" if stages > 1 else ""
        reason = f"this machine has {present} CUDA devices, not cuda:{first}{last}"
        if copies > 1:
            reason = f"{copies} copies have a device for each stage: {reason}"
        raise SetupError("device" if copies == 1 else "data_parallel_size", reason)
    return tuple(f"cuda:{ordinal}" for ordinal in range(first, first + stages))


def visible_devices(gpus: Sequence[str]) -> str:
    """CUDA_VISIBLE_DEVICES for the workers of an engine: its `gpus`. Empty for one on CPUs."""
    ordinals = [device_ordinal(gpu) for gpu in gpus]
    visible = os.environ.get(VISIBLE_DEVICES)
    names = visible.split(",") if visible is not None else None
    return ",".join(str(own) if names is None else names[own].strip() for own in ordinals)


def device_ordinal(device: str) -> int:
    """N of `cuda:N`."""
    return int(device.partition(":")[2])
