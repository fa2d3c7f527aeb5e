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


def process_memory(file: str | None) -> Metric:
    """The resident memory of the processes that are named in `file` and run; of none before it has
    been written."""
    family = GaugeMetricFamily(
        "penstock_process_resident_memory_bytes",
        "Resident memory.",
        labels=["role", "model", "number"],
    )
    for process in _named_in(file):
        with suppress(OSError):  # it is gone
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            labels = [process.role, process.model, str(process.number)]
            family.add_metric(labels, pages * mmap.PAGESIZE)
    return family


def _named_in(file: str | None) -> list[DaemonProcess]:
    """They are read each time: the batch process may be another one by now."""
    try:
        content = b"[]" if file is None else Path(file).read_bytes()
    except FileNotFoundError:
        return []
    return msgspec.json.decode(content, type=list[DaemonProcess])
