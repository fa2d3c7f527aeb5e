"""Files that the supervisor and the batch process write for the metrics."""

import mmap
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric


def copy_label(copy: int | None) -> list[str]:
    """The value of the last label of a sample. An only engine has no such label."""
    return [] if copy is None else [str(copy)]


class DaemonProcess(msgspec.Struct, frozen=True):
    """A process by its `role`: supervisor, api, engine, holder, worker or batch. `number` counts
    API processes, and the stages of an engine; `copy` is its number beside others of the model."""

    pid: int
    role: str
    model: str = ""
    number: int = 0
    copy: int | None = None


def write_processes(file: Path, processes: Sequence[DaemonProcess]) -> None:
    """Write them for the API processes, which may look at any time. Raises OSError."""
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(processes))
    new.rename(file)


def process_memory(file: str | None) -> Metric:
    """The resident memory of the running processes that `file` names, once it has been written."""
    family = GaugeMetricFamily(
        "penstock_process_resident_memory_bytes",
        "Resident memory.",
        labels=["role", "model", "number", "copy"],
    )
    # Each time: the batch process may be another one by now.
    content = Path(file).read_bytes() if file and Path(file).exists() else b"[]"
    for process in msgspec.json.decode(content, type=list[DaemonProcess]):
        with suppress(OSError):  # it is gone
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            labels = [process.role, process.model, str(process.number), *copy_label(process.copy)]
            family.add_metric(labels, pages * mmap.PAGESIZE)
    return family


_CONTENT = struct.Struct("=q?")
"""The batch process's id, and whether it can run."""


class BatchState:
    """The file of the batch process. It has its room from the start, whatever disk is full."""

    def __init__(self, file: Path) -> None:
        """The batch process cannot run yet. Raises OSError."""
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        self.set(runs=False)

    def set(self, *, runs: bool) -> None:
        """From now on. Raises OSError."""
        os.pwrite(self._descriptor, _CONTENT.pack(os.getpid(), runs), 0)


def batches_run(file: Path) -> bool:
    content = file.read_bytes() if file.exists() else b""
    if len(content) != _CONTENT.size:
        return False
    pid, runs = _CONTENT.unpack(content)
    return runs and Path(f"/proc/{pid}").exists()
