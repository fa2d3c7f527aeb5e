"""The memory of the daemon's processes."""

import os
from pathlib import Path

from server.observe.processes import DaemonProcess, process_memory, write_processes


def shown(file: Path | None) -> dict[tuple[str, ...], float]:
    metric = process_memory(file and str(file))
    return {tuple(sample.labels.values()): sample.value for sample in metric.samples}


def test_processes_appear_once_they_are_all_started(tmp_path: Path) -> None:
    file = tmp_path / "processes.json"
    assert shown(file) == {}
    own, unused = os.getpid(), 1 << 22
    write_processes(
        file,
        [DaemonProcess(own, "worker", "writer", 1), DaemonProcess(unused, "engine", "writer")],
    )
    ((labels, value),) = shown(file).items()
    assert labels == ("worker", "writer", "1"), "one that has exited is left out"
    assert 1 << 20 < value < 1 << 40
    assert list(tmp_path.iterdir()) == [file]
    write_processes(file, [DaemonProcess(os.getppid(), "batch")])
    assert list(shown(file)) == [("batch", "", "0")], "one has been started again"


def test_a_process_of_its_own_knows_no_others() -> None:
    assert shown(None) == {}
