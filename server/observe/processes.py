"""Files that other processes of the daemon write for the metrics.

The supervisor says which processes there are, the batch process whether it can run.
"""

import mmap
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric


class DaemonProcess(msgspec.Struct, frozen=True):
    """A process by its `role`: supervisor, api, engine, worker or batch.

    `model` is empty where it has none. `number` counts API processes, and the stages of a model.
    """

    pid: int
    role: str
    model: str = ""
    number: int = 0


def write_processes(file: Path, processes: Sequence[DaemonProcess]) -> None:
    """Write them for the API processes, which may look at any time. Raises OSError."""
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(processes))
    new.rename(file)


def process_memory(file: str | None) -> Metric:
    """The resident memory of the processes that are named in `file` and run. Of none before it has
    been written."""
    family = GaugeMetricFamily(
        "penstock_process_resident_memory_bytes",
        "Resident memory.",
        labels=["role", "model", "number"],
    )
    try:  # each time: the batch process may be another one by now
        content = b"[]" if file is None else Path(file).read_bytes()
    except FileNotFoundError:
        content = b"[]"
    for process in msgspec.json.decode(content, type=list[DaemonProcess]):
        with suppress(OSError):  # it is gone
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            labels = [process.role, process.model, str(process.number)]
            family.add_metric(labels, pages * mmap.PAGESIZE)
    return family


_CONTENT = struct.Struct("=q?")
"""The batch process's id, and whether it can run."""


class BatchState:
    """The file of the batch process. It has its room from the start, whatever disk is full."""

    def __init__(self, file: Path) -> None:
        """The batch process cannot run yet. Raises OSError."""
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(self._descriptor, 0, _CONTENT.size)
        self.set(runs=False)

    def set(self, *, runs: bool) -> None:
        """From now on. Raises OSError."""
        os.pwrite(self._descriptor, _CONTENT.pack(os.getpid(), runs), 0)


def batches_run(file: Path) -> bool:
    """Whether there is a batch process that says that it can run."""
    content = file.read_bytes() if file.exists() else b""
    if len(content) != _CONTENT.size:
        return False
    pid, runs = _CONTENT.unpack(content)
    return runs and Path(f"/proc/{pid}").exists()
