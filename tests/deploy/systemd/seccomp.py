"""A container's seccomp profile with the system calls that a unit of systemd allows."""

import subprocess
from typing import Any

from tests.deploy.systemd.unit_file import Unit

# Linux' numbers; AF_NETLINK is how libc lists the addresses of this machine.
_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}


def seccomp_profile(unit: Unit) -> dict[str, Any]:
    """SystemCallFilter, SystemCallErrorNumber and RestrictAddressFamilies of a unit, in the form
    that container engines take."""
    calls = allowed_calls(unit["SystemCallFilter"]) - {"socket"}
    (families,) = unit["RestrictAddressFamilies"]
    (error,) = unit["SystemCallErrorNumber"]
    assert error == "EPERM"
    sockets = [
        {
            "names": ["socket"],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": _FAMILIES[family], "op": "SCMP_CMP_EQ"}],
        }
        for family in families.split()
    ]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{"names": sorted(calls), "action": "SCMP_ACT_ALLOW"}, *sockets],
    }


def allowed_calls(filters: list[str]) -> set[str]:
    """The calls of the lists, without those of lists that begin with `~`."""
    allowed: set[str] = set()
    for words in filters:
        named = {call for name in words.removeprefix("~").split() for call in _calls(name)}
        allowed = allowed - named if words.startswith("~") else allowed | named
    return allowed


def _calls(name: str) -> set[str]:
    """A call alone, or all calls of a set such as @system-service."""
    if not name.startswith("@"):
        return {name}
    command = ["systemd-analyze", "--no-pager", "syscall-filter", name]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    entries = (line.strip() for line in listed.splitlines()[1:])
    return {
        call for entry in entries if entry and not entry.startswith("#") for call in _calls(entry)
    }
