"""The machine and the versions: figures mean nothing without them."""

import os
import platform
import re
import shutil
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from server.models.devices import available_cores, gpu_names

SOURCE = Path(__file__).parents[2]
"""The source checkout, or the folder of the installed wheel."""

_PACKAGES = (
    *("torch", "triton", "flash-attn-4", "flash-attn", "flashinfer-python"),
    *("transformers", "pyzmq", "msgspec", "uvicorn", "uvloop", "tokenizers"),
)


class Machine(msgspec.Struct, frozen=True):
    """Date, commit, hardware and versions. `load` is the average of the minute before anything was
    started; `gpus` are names with drivers."""

    date: str
    commit: str
    cpu: str
    cores: int
    memory_gb: float
    gpus: list[str]
    system: str
    load: float
    versions: dict[str, str]

    def header(self) -> str:
        noisy = " (noisy: something else was running)" if self.load > 0.5 else ""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        gpus = "".join(f"{gpu}, " for gpu in self.gpus)
        return (
            f"{self.date}, commit {self.commit}, {gpus}{self.cpu}, {self.cores} cores, "
            f"{self.memory_gb:.0f} GB, load {self.load:.1f}{noisy}\n{self.system}, {versions}\n"
        )


def this_machine() -> Machine:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        commit=_commit(),
        cpu=_cpu(),
        cores=available_cores(),
        memory_gb=memory / 1e9,
        gpus=gpu_names(),
        system=f"{platform.system()} {platform.release()}",
        load=os.getloadavg()[0],
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _commit() -> str:
    """The short commit, marked if files that git knows differ from it."""
    described = ("describe", "--always", "--exclude=*", "--dirty= with changes")
    git = [shutil.which("git") or "false", "-C", str(SOURCE), *described]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def _cpu() -> str:
    named = re.search("model name.*: (.*)", Path("/proc/cpuinfo").read_text())
    return named[1] if named else platform.machine()
