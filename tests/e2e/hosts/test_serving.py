"""Several hosts serve one model, and give the texts of one host."""

import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.daemon import Daemon, Program
from tests.e2e.hosts.cluster import PORT, cluster, said, texts_of
from tests.e2e.hosts.network import Host, ip, network
from tests.e2e.life.test_stages import texts


def assert_listens_on_its_address(host: Host, address: str, *, http: str = "") -> set[int]:
    """All that listens there listens on `address`, but for HTTP. The ports."""
    listening = host.listening()
    if http:
        url = httpx.URL(http)
        listening.remove((url.host, url.port or 80))
    assert {own for own, _ in listening} == {address}
    return {port for _, port in listening}


def assert_told_interface(program: Program, interface: str, address: str) -> None:
    """In one line."""
    assert len([line for line in program.log if interface in line and address in line]) == 1


def test_two_hosts_serve_over_the_network_that_reaches_the_master(
    demo: Daemon, tmp_path: Path
) -> None:
    with network(2, networks=2) as net, cluster(net, tmp_path, via=1) as programs:
        first, second = net.hosts
        node = programs.join(1)
        time.sleep(1)  # the master may come later
        master = programs.serve(nodes=2, stages=2).wait_ready()
        assert said(master, "waiting for 1 more node at", programs.master_address)
        assert programs.texts(master) == texts(demo)
        for program, host in ((master, first), (node, second)):
            assert len(program.children()["workers"]) == 1
            assert_told_interface(program, "net1", host.addresses[1])
        ports = assert_listens_on_its_address(first, first.addresses[1], http=master.url)
        assert ports >= {PORT, PORT + 1, PORT + 2}
        # Those of gloo.
        assert assert_listens_on_its_address(second, second.addresses[1])


@pytest.mark.long
def test_three_hosts_serve_with_links_inside_and_between_them(demo: Daemon, tmp_path: Path) -> None:
    with network(3) as net, cluster(net, tmp_path) as programs:
        nodes = [programs.join(2, "--node-rank", "1"), programs.join(1, "--node-rank", "2")]
        master = programs.serve(nodes=3, stages=4).wait_ready()
        workers = [len(program.children()["workers"]) for program in (master, *nodes)]
        assert workers == [2, 1, 1]
        assert programs.texts(master) == texts(demo)


@pytest.mark.long
def test_an_interface_that_is_asked_for(demo: Daemon, tmp_path: Path) -> None:
    """Both networks reach the master's host, and a program may use the one it is told."""
    with network(2, networks=2) as net, cluster(net, tmp_path) as programs:
        node = programs.join(1, "--interface", "net0")
        master = programs.serve("--interface", "net0", nodes=2, stages=2).wait_ready()
        assert programs.texts(master) == texts(demo)
        for program, host in ((master, net.hosts[0]), (node, net.hosts[1])):
            assert_told_interface(program, "net0", host.address)


@pytest.mark.long
def test_hosts_that_have_ipv6_alone(demo: Daemon, tmp_path: Path) -> None:
    with network(2) as net, cluster(net, tmp_path) as programs:
        for host in net.hosts:
            ip("address", "flush", "dev", "net0", namespace=host.name)
            own = f"fd77::{host.number + 1}/64"
            ip("address", "add", own, "dev", "net0", "nodad", namespace=host.name)
        programs.master_address = f"[fd77::1]:{PORT}"
        node = programs.join(1)
        master = programs.serve(nodes=2, stages=2).wait_ready()
        assert programs.texts(master) == texts(demo)
        assert_listens_on_its_address(net.hosts[0], "fd77::1", http=master.url)
        assert_listens_on_its_address(net.hosts[1], "fd77::2")
        assert_told_interface(node, "net0", "fd77::2")


@pytest.mark.long
@pytest.mark.parametrize("pauses", [(), (0.2, 1.0, 2.0)])
def test_a_network_of_50_ms_that_pauses(
    demo: Daemon, tmp_path: Path, pauses: tuple[float, ...]
) -> None:
    with network(2, delay=0.05) as net, cluster(net, tmp_path) as programs:
        node = programs.join(1)
        master = programs.serve(nodes=2, stages=2).wait_ready()
        asked = programs.ask(master)
        for seconds in pauses:
            time.sleep(1)
            net.wire.pause(seconds)
        assert texts_of(asked) == texts(demo)
        assert node.process.poll() is None
        assert programs.get(f"{master.url}/health/ready").status_code == 200


@pytest.mark.long
def test_a_network_of_20_megabits(demo: Daemon, tmp_path: Path) -> None:
    with network(2) as net, cluster(net, tmp_path) as programs:
        net.hosts[1].limit_bandwidth("20mbit")
        programs.join(1)
        master = programs.serve(nodes=2, stages=2).wait_ready()
        assert programs.texts(master) == texts(demo)
