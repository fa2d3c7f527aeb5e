"""The hosts of these tests are hosts: plain sockets reach each other, or do not."""

import socket
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.hosts.network import Host, network
from tests.patience import PATIENCE

PORT = 5000


@contextmanager
def connected(server: Host, client: Host) -> Generator[tuple[socket.socket, socket.socket]]:
    """The ends of a connection: the server's, the client's."""
    with server.inside():
        listener = socket.create_server((server.address, PORT))
    with client.inside():
        own = socket.create_connection((server.address, PORT), PATIENCE)
    accepted, (address, _) = listener.accept()
    assert address == client.address
    accepted.settimeout(PATIENCE)
    with listener, own, accepted:
        yield accepted, own


def test_each_host_reaches_each_until_its_cable_is_pulled() -> None:
    with network(3) as net:
        first, second, third = net.hosts
        with connected(first, third) as (server, client), connected(second, first):
            client.sendall(b"before")
            assert server.recv(10) == b"before"
            assert first.listening() == {(first.address, PORT)}
            third.unplug()
            client.sendall(b"after")
            server.settimeout(0.5)
            with pytest.raises(TimeoutError):
                server.recv(10)
            third.plug_in()
            server.settimeout(PATIENCE)
            assert server.recv(10) == b"after"


def test_two_networks_do_not_meet() -> None:
    with network(2, networks=2) as net:
        first, second = net.hosts
        for address in first.addresses:
            with first.inside(), socket.create_server((address, PORT)), second.inside():
                own = socket.create_connection((address, PORT), PATIENCE)
                with own:
                    index = first.addresses.index(address)
                    assert own.getsockname()[0] == second.addresses[index]


def test_a_wire_is_late_pauses_and_loses_nothing() -> None:
    sent = bytes(range(256)) * 4096
    with network(2, delay=0.05) as net, connected(*net.hosts) as (server, client):
        begun = time.monotonic()
        server.sendall(b"?")
        assert client.recv(1) == b"?"
        client.sendall(b"!")
        assert server.recv(1) == b"!"
        assert time.monotonic() - begun >= 0.1
        pause = threading.Thread(target=net.wire.pause, args=(0.5,))
        pause.start()
        time.sleep(0.1)
        begun = time.monotonic()
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        received = b""
        while len(received) < len(sent):
            received += server.recv(1 << 20)
        assert time.monotonic() - begun > 0.3
        assert received == sent
        for thread in (pause, sender):
            thread.join(PATIENCE)


def test_bandwidth_is_limited() -> None:
    with network(2) as net, connected(*net.hosts) as (server, client):
        net.hosts[1].limit_bandwidth("8mbit")
        begun, received = time.monotonic(), 0
        sender = threading.Thread(target=client.sendall, args=(bytes(1_000_000),))
        sender.start()
        while received < 1_000_000:
            received += len(server.recv(1 << 20))
        assert time.monotonic() - begun > 0.7
        sender.join(PATIENCE)


def test_nothing_is_left_even_of_a_test_that_fails() -> None:
    here = Path("/proc/thread-self/ns/net").readlink()
    names: list[str] = []

    def fail() -> None:
        with network(2, delay=0) as net, net.hosts[0].inside():
            names.extend(host.name for host in net.hosts)
            assert Path("/proc/thread-self/ns/net").readlink() != here
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert Path("/proc/thread-self/ns/net").readlink() == here
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    assert not any(name in listed.stdout for name in names)
