"""What the kernel knows of a process."""

import os
import re
from pathlib import Path

import msgspec


class Memory(msgspec.Struct, frozen=True):
    """Bytes in memory: all of them, and with each shared page divided by its users."""

    rss: int
    pss: int


def memory_of(pid: int) -> Memory:
    """Raises OSError if the process is gone."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = {name: int(size) * 1024 for name, size in re.findall(r"(\w+): +(\d+) kB", text)}
    return Memory(sizes["Rss"], sizes["Pss"])


def has_mapped(pid: int, library: str) -> bool:
    """Whether any file of that name is mapped into the process."""
    return library in Path(f"/proc/{pid}/maps").read_text()


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family_of(pid: int) -> list[int]:
    """A daemon's supervisor, its children and theirs."""
    children = list(children_of(pid))
    return [pid, *children, *(inner for child in children for inner in children_of(child))]


def children_of(pid: int) -> dict[int, str]:
    """Process id -> module of each Python child that runs one (`python -m MODULE`)."""
    pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    words = {int(child): Path(f"/proc/{child}/cmdline").read_text().split("\0") for child in pids}
    return {
        child: command[command.index("-m") + 1]
        for child, command in words.items()
        if "-m" in command
    }
