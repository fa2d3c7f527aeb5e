"""A start that cannot write its private folder: one line that says what, and where."""

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon

GENERATOR = str(demo_models()[GENERATOR_NAME])


def last_line(daemon: Daemon) -> str:
    """Of a start that fails, after at most the line that it starts."""
    try:
        assert daemon.exit_code() == 1
    finally:
        daemon.end()
    assert "Traceback" not in "".join(daemon.log)
    assert len(daemon.log) <= 3, daemon.log
    return daemon.log[-1]


@pytest.mark.parametrize(
    ("largest_file", "words"),
    [
        (0, "cannot make a folder for sockets: No usable temporary directory found in"),
        (100, "/penstock-"),
    ],
)
def test_a_file_system_that_refuses(largest_file: int, words: str) -> None:
    daemon = Daemon(GENERATOR, "--state-dir", "none")
    # Before it has imported anything. What is larger is refused by the kernel, as on a full disk.
    resource.prlimit(daemon.pid, resource.RLIMIT_FSIZE, (largest_file, largest_file))
    line = last_line(daemon)
    assert line.startswith("penstock: error: cannot ")
    assert words in line
    assert "TMPDIR" in line


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of its own, mounted with the options that a test asks for."""
    command = ["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", str(tmp_path)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only those who may mount have a full disk at hand")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize(
    ("small_disk", "words"),
    [
        ("size=4k", "penstock: error: cannot write to {}/penstock-"),
        ("nr_inodes=3", "penstock: error: cannot write to {}/penstock-"),
        ("nr_inodes=6", "the engine of generator exited with status 1"),
    ],
    indirect=["small_disk"],
)
def test_no_space_left(small_disk: Path, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(small_disk))
    daemon = Daemon(GENERATOR, "--state-dir", "none")
    assert words.format(small_disk) in last_line(daemon)
    assert f"{small_disk}/penstock-" in "".join(daemon.log)
    assert "No space left on device" in "".join(daemon.log)
