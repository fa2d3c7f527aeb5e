"""What the figures were measured on: without it they say nothing."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import msgspec

from server.devices import available_cores

REPOSITORY = Path(__file__).parent.parent
_PACKAGES = ("torch", "transformers", "pyzmq", "msgspec", "uvicorn", "uvloop", "tokenizers")


class Machine(msgspec.Struct, frozen=True):
    """Date, commit, hardware and versions. `load` is the load average of the last minute, before
    anything was started: on a quiet machine it is near zero."""

    date: str
    commit: str
    cpu: str
    cores: int
    memory_gb: float
    system: str
    load: float
    versions: dict[str, str]

    def header(self) -> str:
        """Two lines for people."""
        noisy = " (noisy: something else was running)" if self.load > 0.5 else ""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return (
            f"{self.date}, commit {self.commit}, {self.cpu}, {self.cores} cores, "
            f"{self.memory_gb:.0f} GB, load {self.load:.1f}{noisy}\n{self.system}, {versions}\n"
        )


def this_machine() -> Machine:
    """This machine, now."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_commit(),
        cpu=_cpu(),
        cores=available_cores(),
        memory_gb=memory / 1e9,
        system=f"{platform.system()} {platform.release()}",
        load=os.getloadavg()[0],
        versions={"Python": platform.python_version()}
        | {package: version(package) for package in _PACKAGES},
    )


def _commit() -> str:
    """The short commit, marked where the working tree differs from it."""
    if shutil.which("git") is None:
        return "unknown"
    git = ("git", "-C", str(REPOSITORY))
    head = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    if head.returncode:
        return "unknown"
    changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, check=True)
    return head.stdout.strip() + (" with changes" if changed.stdout else "")


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
