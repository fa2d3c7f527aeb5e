"""Daemons are found by their private folders, and only while they run."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from server.daemon import running_daemons as module
from server.daemon.running_daemons import announce, running_daemons
from tests.server.support import server_config

ANNOUNCER = """
import pathlib, sys
from server.daemon.running_daemons import announce
with announce(pathlib.Path(sys.argv[1])):
    print("announced", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The private folder of a daemon to be."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "penstock-abcdefgh"
    folder.mkdir(mode=0o700)
    (folder / "server.json").write_bytes(msgspec.json.encode(server_config()))
    return folder


def test_a_daemon_is_found_while_its_announcement_lasts(folder: Path) -> None:
    assert running_daemons() == []
    with announce(folder):
        (daemon,) = running_daemons()
        assert (daemon.pid, daemon.config) == (os.getpid(), server_config())
    assert running_daemons() == []


def test_a_daemon_that_was_killed_is_not_found(folder: Path) -> None:
    """Its folder stays behind, and its process id may be another's by now."""
    command = [sys.executable, "-c", ANNOUNCER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"announced\n"
        assert [daemon.pid for daemon in running_daemons()] == [process.pid]
        process.kill()
        process.wait()
    assert (folder / "pid").read_text() == str(process.pid)
    assert running_daemons() == []


def test_what_is_no_daemon_of_this_user_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("penstock-notes", "penstock-starting"):
        (folder.parent / name).mkdir()
    (folder.parent / "penstock-file").touch()
    with announce(folder), announce(folder.parent / "penstock-starting"):
        assert [daemon.pid for daemon in running_daemons()] == [os.getpid()]
        monkeypatch.setattr(module.os, "getuid", lambda: os.geteuid() + 1)
        assert running_daemons() == []
