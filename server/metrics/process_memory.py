"""How much memory each process of the daemon has: the supervisor says which there are, and any API
process looks them up."""

import mmap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric


class DaemonProcess(msgspec.Struct, frozen=True):
    """A process: `role` is supervisor, api, engine, worker or batch; `model` is empty where it has
    none; `number` counts API processes, and the stages of a model."""

    pid: int
    role: str
    model: str = ""
    number: int = 0


def write_processes(file: Path, processes: Sequence[DaemonProcess]) -> None:
    """Write them for the API processes, which may look at any time. Raises OSError."""
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(processes))
    new.rename(file)


class ProcessMemory:
    """The processes that are named in `file`; there are none before it has been written."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def metric(self) -> Metric:
        """The resident memory of those that run."""
        family = GaugeMetricFamily(
            "penstock_process_resident_memory_bytes",
            "Resident memory.",
            labels=["role", "model", "number"],
        )
        for process in self._found():
            with suppress(OSError):  # it is gone
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                labels = [process.role, process.model, str(process.number)]
                family.add_metric(labels, pages * mmap.PAGESIZE)
        return family

    def _found(self) -> list[DaemonProcess]:
        """They are read each time: the batch process may be another one by now."""
        if self._file is None:
            return []
        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return []
        return msgspec.json.decode(content, type=list[DaemonProcess])
