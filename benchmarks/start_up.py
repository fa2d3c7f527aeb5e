"""`penstock serve` with the demo models: how long until it is ready, and what it then occupies."""

import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from statistics import median

from benchmarks.proc import children_of, has_mapped, memory_of
from benchmarks.processes import REPOSITORY
from benchmarks.report import Budget, Figure
from server.demo import demo_models

_READY_SECONDS, _MEMORY_MB = 6, 150
_STARTS = 3
_STOP_SECONDS = 30


def measure() -> list[Figure]:
    """The median of three starts, after one that warms the files; memory in the last."""
    with _daemon():
        pass
    times: list[float] = []
    memory: list[Figure] = []
    for _ in range(_STARTS):
        with _daemon() as (pid, seconds):
            times.append(seconds)
            memory = _memory(pid)
    note = f"median of {', '.join(f'{seconds:.2f}' for seconds in times)}"
    return [Figure("start to ready", median(times), "s", Budget(_READY_SECONDS), note), *memory]


@contextmanager
def _daemon() -> Generator[tuple[int, float]]:
    """A ready daemon: its process id, and the seconds that it took."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "server", "serve", "--port", "0"],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        log = _read_until_ready(process)
        seconds = time.monotonic() - started
        if process.poll() is not None:
            raise RuntimeError(f"penstock serve did not become ready:\n{log}")
        yield process.pid, seconds
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=_STOP_SECONDS)
    finally:
        # Its children end with it, however it ends.
        process.kill()
        process.communicate()


def _read_until_ready(process: subprocess.Popen[str]) -> str:
    """The log, up to the line that says it is ready (or, if it ends before, to its end)."""
    assert process.stderr is not None
    log = ""
    for line in process.stderr:
        log += line
        if "is ready on http" in line:
            return log
    process.wait()
    return log


def _memory(supervisor: int) -> list[Figure]:
    """Resident memory of every process of the daemon, and how many have torch without need."""
    names = {supervisor: "supervisor"} | _names(children_of(supervisor))
    figures: list[Figure] = []
    with_torch: list[str] = []
    for pid, name in names.items():
        computes = name.startswith("worker")
        if not computes and has_mapped(pid, "libtorch"):
            with_torch.append(name)
        memory = memory_of(pid)
        budget = None if computes else Budget(_MEMORY_MB)
        note = f"{memory.pss / 1e6:.0f} MB with shared pages divided"
        figures.append(Figure(f"memory of the {name}", memory.rss / 1e6, "MB", budget, note))
    note = ", ".join(with_torch)
    return [*figures, Figure("torch where it is not needed", len(with_torch), "", Budget(0), note)]


def _names(modules: dict[int, str]) -> dict[int, str]:
    """What each child is; engines and workers are started model by model."""
    models = {"engine_core": iter(demo_models()), "workers": iter(demo_models())}
    roles = {"engine_core": "engine core", "workers": "worker"}
    return {
        pid: f"{roles[module]} of {next(models[module])}" if module in roles else "API process"
        for pid, module in modules.items()
    }
