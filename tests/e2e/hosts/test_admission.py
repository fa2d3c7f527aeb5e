"""Who joins a cluster, and who is sent away with one line."""

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon
from tests.e2e.hosts.cluster import DEMO, cluster, last_words, said, write_secret
from tests.e2e.hosts.network import network
from tests.e2e.life.test_stages import texts
from tests.patience import wait_until

MARGIN = 10.0
"""Seconds for the start of Python on a busy machine."""


def test_a_wrong_secret_ends_the_node_with_one_line_and_the_master_waits_on(
    tmp_path: Path,
) -> None:
    wrong = write_secret(tmp_path / "wrong", "of some other cluster")
    with network(2) as net, cluster(net, tmp_path) as programs:
        master = programs.serve(nodes=2, stages=2)
        begun = time.monotonic()
        line = last_words(programs.join(1, secret=wrong))
        assert time.monotonic() - begun < 10 + MARGIN
        assert programs.master_address in line
        assert "secret" in line
        assert said(master, "waiting for 1 more node")
        programs.join(1)
        wait_until(lambda: said(master, net.hosts[1].address, "has joined"))


@pytest.mark.long
def test_a_master_that_nobody_reaches(tmp_path: Path) -> None:
    with network(2) as net, cluster(net, tmp_path) as programs:
        begun = time.monotonic()
        assert programs.master_address in last_words(programs.join(1))
        assert 9 < time.monotonic() - begun < 10 + MARGIN


@pytest.mark.long
def test_a_rank_is_given_once(demo: Daemon, tmp_path: Path) -> None:
    with network(3) as net, cluster(net, tmp_path) as programs:
        master = programs.serve(nodes=3, stages=3)
        node = programs.join(1, "--node-rank", "2")
        wait_until(lambda: said(master, "waiting for 1 more node"))
        assert "2" in last_words(programs.join(2, "--node-rank", "2"))
        assert "3" in last_words(programs.join(2, "--node-rank", "3"))
        late = programs.join(2)
        master.wait_ready()
        last_words(programs.join(2))  # nobody is missing any more
        assert programs.texts(master) == texts(demo)
        assert [node.process.poll(), late.process.poll()] == [None, None]


@pytest.mark.long
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_node_with_another_model(tmp_path: Path, file: str) -> None:
    other = Path(shutil.copytree(DEMO, tmp_path / "other"))
    contents = (other / file).read_bytes()
    if file == "config.json":
        changed = json.dumps(json.loads(contents) | {"rope_theta": 20000.0}).encode()
    else:
        end = 8 + int.from_bytes(contents[:8], "little")
        header = contents[8:end] + b" " * 8
        changed = len(header).to_bytes(8, "little") + header + contents[end:]
    (other / file).write_bytes(changed)
    with network(2) as net, cluster(net, tmp_path) as programs:
        master = programs.serve(nodes=2, stages=2)
        node = programs.join(1, "--model", str(other))
        assert file in last_words(node)
        line = last_words(master)
        assert file in line
        assert net.hosts[1].address in line


@pytest.mark.long
def test_the_same_model_at_another_path(demo: Daemon, tmp_path: Path) -> None:
    with network(2) as net, cluster(net, tmp_path) as programs:
        master = programs.serve(nodes=2, stages=2)
        programs.join(1, "--model", str(shutil.copytree(DEMO, tmp_path / "same")))
        assert programs.texts(master.wait_ready()) == texts(demo)
