"""Connections are open files: the limit is raised at start, and whoever runs into it is told."""

import contextlib
import resource
from collections.abc import Iterator

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon
from tests.patience import wait_until

HARD = 300


@pytest.fixture(scope="module")
def narrow() -> Iterator[Daemon]:
    """A daemon that found 100 open files allowed, and 300 at most."""
    daemon = Daemon(str(demo_models()[GENERATOR_NAME]), "--threads", "1")
    try:
        # Before it has imported anything.
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (100, HARD))
        yield daemon.wait_ready()
    finally:
        daemon.end()


def lines(daemon: Daemon, word: str) -> list[str]:
    return [line for line in daemon.log if word in line]


def test_the_limit_is_raised_for_every_process(narrow: Daemon) -> None:
    pids = [narrow.pid, *narrow.all_children()]
    assert len(pids) == 4
    limits = {resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids}
    assert limits == {(HARD, HARD)}


def test_a_limit_below_what_is_admitted_is_a_warning(narrow: Daemon) -> None:
    (warning,) = lines(narrow, "may open")
    assert f"may open {HARD} files" in warning
    assert "16384 requests" in warning
    assert "--max-sequences" in warning


def test_no_file_left_is_one_line_of_the_log(narrow: Daemon) -> None:
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            for _ in range(HARD + 50):
                stack.enter_context(narrow.connect())
            wait_until(lambda: lines(narrow, "are open"))
        # Until their ends have been seen there is no file for another one.
        wait_until(lambda: is_live(narrow))
    (line,) = lines(narrow, "are open")
    assert f"all {HARD} files" in line


def is_live(daemon: Daemon) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{daemon.url}/health/live").status_code == 200
    return False
