"""Units of systemd as they are written: what systemd makes of them is asked of its own tools."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.project.source_tree import REPOSITORY

UNITS = REPOSITORY / "deploy" / "systemd"
NAMES = ("penstock", "penstock-cuda")

Unit = dict[str, list[str]]
"""The values of each key, in order; a key is in one section only."""


def read_unit(name: str) -> Unit:
    """The unit penstock or penstock-cuda."""
    unit: Unit = {}
    for line in (UNITS / f"{name}.service").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            unit.setdefault(key, []).append(value)
    return unit


def seconds(value: str) -> float:
    """A time span without a unit, or in minutes."""
    number, unit = re.fullmatch(r"(\d+)(s|min)?", value).groups()  # pyright: ignore[reportOptionalMemberAccess]
    return float(number) * (60 if unit == "min" else 1)


class SystemRoot:
    """A system below `folder`, in which the units are installed as docs/one-host.md says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.units = folder / "etc" / "systemd" / "system"
        self.units.mkdir(parents=True)
        for unit in UNITS.glob("*.service"):
            shutil.copy(unit, self.units)
        shutil.copytree("/lib/systemd/system", folder / "lib" / "systemd" / "system", symlinks=True)
        for program in ("opt/penstock/bin/penstock", "bin/kill"):
            (folder / program).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy("/bin/true", folder / program)

    def verify(self, name: str) -> str:
        """What systemd finds wrong with a unit: it warns of most mistakes, and fails for few."""
        command = ["systemd-analyze", "verify", f"--root={self._folder}", f"{name}.service"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr + (f"exit code {done.returncode}" * (done.returncode != 0))
