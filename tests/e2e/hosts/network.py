"""Hosts in a test: network namespaces of this machine, plugged into a switch of the test's own."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_NAMES = f"penstock-{os.getpid()}"
_NAMESPACES = Path("/run/netns")
_NEW_NET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """Why there can be no such hosts here."""
    if os.geteuid():
        return "only root may make network namespaces"
    name = f"{_NAMES}-trial"
    try:
        ip("netns", "add", name)
        ip("netns", "delete", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces here: {error}"
    return None


def ip(*words: str, namespace: str | None = None, program: str = "ip") -> None:
    """Run iproute2's `program`. Raises subprocess.CalledProcessError."""
    where = () if namespace is None else ("-n", namespace)
    subprocess.run([program, *where, *words], check=True, capture_output=True)


class Namespace:
    """A network namespace, with loopback up, until `delete`."""

    def __init__(self, name: str) -> None:
        self.name = name
        ip("netns", "add", name)
        ip("link", "set", "lo", "up", namespace=name)

    def delete(self) -> None:
        ip("netns", "delete", self.name)

    @contextmanager
    def inside(self) -> Generator[None]:
        """What this thread opens or starts meanwhile is there, threads and processes too."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        own = os.open(_NAMESPACES / self.name, os.O_RDONLY)
        try:
            _enter(own)
            yield
        finally:
            _enter(before)
            os.close(own)
            os.close(before)


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _NEW_NET):  # os.setns came with Python 3.12
        raise OSError(ctypes.get_errno(), "setns")


class Host(Namespace):
    """Host `number`: its interface `net0` has 10.77.0.(number + 1), and `net1`, where there is a
    second network, 10.78.0.(number + 1)."""

    def __init__(self, number: int, networks: int) -> None:
        super().__init__(f"{_NAMES}-{number}")
        self.number = number
        self.addresses = [f"10.{77 + network}.0.{number + 1}" for network in range(networks)]

    def join(self, switch: Namespace) -> None:
        self._switch = switch
        for network, address in enumerate(self.addresses):
            own, port = f"net{network}", self.port(network)
            cable = ("type", "veth", "peer", port, "netns", switch.name)
            ip("link", "add", own, *cable, namespace=self.name)
            ip("address", "add", f"{address}/24", "dev", own, namespace=self.name)
            ip("link", "set", own, "up", namespace=self.name)
            ip("link", "set", port, "up", namespace=switch.name)

    @property
    def address(self) -> str:
        return self.addresses[0]

    def port(self, network: int = 0) -> str:
        """The switch's end of its cable."""
        return f"port{self.number}-{network}"

    def unplug(self) -> None:
        """Pull every cable: nothing arrives any more, and nobody is told."""
        self._set_ports("down")

    def plug_in(self) -> None:
        self._set_ports("up")

    def _set_ports(self, state: str) -> None:
        for network in range(len(self.addresses)):
            ip("link", "set", self.port(network), state, namespace=self._switch.name)

    def limit_bandwidth(self, rate: str) -> None:
        """Hold what it sends and receives to `rate`, such as 20mbit."""
        bucket = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "1s")
        for name, device in ((self.name, "net0"), (self._switch.name, self.port())):
            ip("qdisc", "add", "dev", device, *bucket, namespace=name, program="tc")

    def listening(self) -> set[tuple[str, int]]:
        """The addresses and ports of all TCP sockets that listen there."""
        command = ["ip", "netns", "exec", self.name, "ss", "-Hltn"]
        rows = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = [row.split()[3].rsplit(":", 1) for row in rows.splitlines()]
        # One that speaks IPv4 and IPv6 has [::ffff:10.77.0.1] here.
        return {(address.strip("[]").removeprefix("::ffff:"), int(port)) for address, port in found}


class Wire:
    """wire.py instead of the kernel's bridge, between the ports of one network."""

    def __init__(self, switch: Namespace, delay: float, ports: list[str]) -> None:
        command = [sys.executable, "-m", "tests.e2e.hosts.wire", f"{delay:g}", *ports]
        with switch.inside():
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        with self._process.stdout as ready:
            assert ready.readline() == b"ready\n"

    def pause(self, seconds: float) -> None:
        """Deliver nothing for so long, then all."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self._process.send_signal(signal.SIGCONT)

    def cut(self) -> None:
        self._process.kill()
        self._process.wait()


class Network:
    """Some hosts and what joins them: bridges of the kernel, or `wire`."""

    def __init__(self, hosts: list[Host], wire: Wire | None) -> None:
        self.hosts = hosts
        self._wire = wire

    @property
    def wire(self) -> Wire:
        assert self._wire is not None
        return self._wire


@contextmanager
def network(hosts: int, *, networks: int = 1, delay: float | None = None) -> Generator[Network]:
    """Hosts on one network or two. With `delay`, that of one network takes so many seconds a
    direction. Afterwards nothing is left."""
    with ExitStack() as stack:
        switch = Namespace(f"{_NAMES}-switch")
        stack.callback(switch.delete)
        joined: list[Host] = []
        for number in range(hosts):
            host = Host(number, networks)
            stack.callback(host.delete)
            host.join(switch)
            joined.append(host)
        wire = None
        if delay is None:
            _bridge(switch, joined)
        else:
            wire = Wire(switch, delay, [host.port() for host in joined])
            stack.callback(wire.cut)
        yield Network(joined, wire)


def _bridge(switch: Namespace, hosts: list[Host]) -> None:
    for network in range(len(hosts[0].addresses)):
        ip("link", "add", f"br{network}", "type", "bridge", namespace=switch.name)
        ip("link", "set", f"br{network}", "up", namespace=switch.name)
        for host in hosts:
            ip("link", "set", host.port(network), "master", f"br{network}", namespace=switch.name)
