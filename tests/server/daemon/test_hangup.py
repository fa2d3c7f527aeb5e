"""SIGHUP: the API processes are told to reload, unless the daemon's terminal was closed."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import Popen

import pytest

from tests.patience import PATIENCE, wait_until
from tests.server.daemon.fake_daemon import FakeDaemon


@pytest.fixture
def daemon(tmp_path: Path) -> FakeDaemon:
    daemon = FakeDaemon(tmp_path)
    daemon.add("engine", "engine")
    daemon.add("api 0", "api")
    daemon.add("api 1", "api")
    return daemon


async def test_one_that_comes_before_a_process_can_follow_waits_for_it(daemon: FakeDaemon) -> None:
    """Its default action would end the child, and with it the start."""

    def terminate_once_reloaded() -> None:
        if len(daemon.diary("reloads")) < 2:
            asyncio.get_running_loop().call_later(0.02, terminate_once_reloaded)
        else:
            signal.raise_signal(signal.SIGTERM)

    hang_up = partial(signal.raise_signal, signal.SIGHUP)
    assert await daemon.run(terminate_once_reloaded, on_started=lambda _: hang_up()) == 0
    assert sorted(daemon.diary("reloads")) == ["api 0", "api 1"]


SUPERVISOR = """
import asyncio, pathlib, sys
from tests.server.daemon.fake_daemon import FakeDaemon
folder = pathlib.Path(sys.argv[1])
daemon = FakeDaemon(folder)
daemon.add("api", "api")
sys.exit(asyncio.run(daemon.run((folder / "ready").touch)))
"""
STARTING = """
import pathlib, sys, time
from server.daemon.supervisor import Hangup
hangup = Hangup()
(pathlib.Path(sys.argv[1]) / "ready").touch()
time.sleep(60)
"""


@contextmanager
def on_a_terminal(script: str, folder: Path, *before: str) -> Generator[tuple[Popen[bytes], int]]:
    """A process that has made the file `ready`, and its terminal's other end."""
    ours, theirs = pty.openpty()
    # The terminal is its controlling one; a SIGHUP that is ignored stays so in a new program.
    command = ["setsid", "--ctty", *before, sys.executable, "-c", script, str(folder)]
    process = Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(theirs)
    try:
        wait_until((folder / "ready").exists)
        yield process, ours
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.parametrize("nohup", [False, True])
def test_a_terminal_that_is_closed_ends_the_daemon(tmp_path: Path, nohup: bool) -> None:
    with on_a_terminal(SUPERVISOR, tmp_path, *(["nohup"] if nohup else [])) as (process, ours):
        process.send_signal(signal.SIGHUP)
        wait_until((tmp_path / "reloads").exists)
        os.close(ours)
        if nohup:
            time.sleep(0.5)
            assert process.poll() is None
        else:
            assert process.wait(PATIENCE) == 0
            assert (tmp_path / "diary").read_text() == "api\n"


def test_a_terminal_that_is_closed_ends_a_daemon_that_prepares_its_start(tmp_path: Path) -> None:
    with on_a_terminal(STARTING, tmp_path) as (process, ours):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert process.poll() is None
        os.close(ours)
        assert process.wait(PATIENCE) == 128 + signal.SIGHUP
