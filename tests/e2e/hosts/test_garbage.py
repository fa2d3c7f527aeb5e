"""Those without the secret change nothing, and gloo's ports are the only others."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.e2e.daemon import Asking, Daemon
from tests.e2e.hosts.cluster import PORT, Cluster, cluster, none_alive, texts_of
from tests.e2e.hosts.garbage import send_garbage, send_messages
from tests.e2e.hosts.network import network
from tests.e2e.life.test_stages import texts
from tests.patience import wait_until
from workers.contract.curve import ClusterKeys

pytestmark = pytest.mark.long

OURS = (PORT, PORT + 1, PORT + 2)
FRAMES = 10_000
OPEN_FILES_MORE = 30


def open_files(pids: list[int]) -> int:
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids)


def secret_of(programs: Cluster) -> bytes:
    return programs.secret.read_bytes().strip()


def impostors(secret: bytes) -> list[ClusterKeys | None]:
    """No keys, those of another secret, and those of one who has come by the listener's public
    one."""
    other, ours = ClusterKeys.of(b"another cluster's"), ClusterKeys.of(secret)
    return [None, other, msgspec.structs.replace(other, listener=ours.listener)]


def test_garbage_on_the_ports_of_the_cluster_changes_nothing(demo: Daemon, tmp_path: Path) -> None:
    with network(3) as net, cluster(net, tmp_path) as programs:
        node, stranger = programs.join(1), net.hosts[2]
        master = programs.serve(nodes=2, stages=2).wait_ready()
        expected, pids = texts(demo), programs.pids()
        assert programs.texts(master) == expected
        before, lines = open_files(pids), len(master.log) + len(node.log)
        asked = programs.ask(master)
        with stranger.inside(), ThreadPoolExecutor() as attackers:
            address, others = net.hosts[0].address, impostors(secret_of(programs))
            for port in OURS:
                attackers.submit(send_garbage, (address, port), FRAMES)
                for keys in others:
                    attackers.submit(send_messages, f"tcp://{address}:{port}", FRAMES, keys)
        assert texts_of(asked) == expected
        assert programs.texts(master) == expected
        assert programs.pids() == pids
        wait_until(lambda: open_files(pids) < before + OPEN_FILES_MORE)
        # One line a minute and port at most.
        assert len(master.log) + len(node.log) <= lines + 6


def test_garbage_before_all_nodes_are_there_changes_nothing(demo: Daemon, tmp_path: Path) -> None:
    with network(3) as net, cluster(net, tmp_path) as programs:
        master, stranger = programs.serve(nodes=2, stages=2), net.hosts[2]
        address = (net.hosts[0].address, PORT)
        wait_until(lambda: address in net.hosts[0].listening())
        with stranger.inside():
            send_garbage(address, FRAMES)
        programs.join(1)
        master.wait_ready()
        assert programs.texts(master) == texts(demo)


def test_garbage_on_ports_of_gloo_at_worst_ends_the_cluster(demo: Daemon, tmp_path: Path) -> None:
    with network(3) as net, cluster(net, tmp_path) as programs:
        programs.join(1)
        master = programs.serve(nodes=2, stages=2).wait_ready()
        asked = programs.ask(master)
        for host in net.hosts[:2]:
            for address, port in host.listening():
                if port not in OURS and address == host.address:
                    with net.hosts[2].inside():
                        send_garbage((address, port), 1000)
        assert_served_or_gone(programs, master, asked, texts(demo))


def test_messages_of_one_with_the_secret_at_worst_end_the_cluster(
    demo: Daemon, tmp_path: Path
) -> None:
    with network(3) as net, cluster(net, tmp_path) as programs:
        programs.join(1)
        master = programs.serve(nodes=2, stages=2).wait_ready()
        asked, keys = programs.ask(master), ClusterKeys.of(secret_of(programs))
        for port in OURS:
            with net.hosts[2].inside():
                send_messages(f"tcp://{net.hosts[0].address}:{port}", 1000, keys)
        assert_served_or_gone(programs, master, asked, texts(demo))


def assert_served_or_gone(
    programs: Cluster, master: Daemon, asked: list[Asking], expected: list[list[str]]
) -> None:
    """The requests have their texts, and others too; or the cluster has ended as by any loss."""
    pids = programs.pids()
    if texts_of(asked) == expected and texts_of(programs.ask(master)) == expected:
        return
    wait_until(lambda: none_alive(pids))
    assert [program.exit_code() for program in programs.started] == [1, 1]
    assert not any("Traceback" in line for program in programs.started for line in program.log)
