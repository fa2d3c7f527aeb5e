"""Daemons are found by their private folders, and only while they run."""

import asyncio
import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from engine_core.client.encode_calls import VectorsCall
from engine_core.client.trace_client import trace_engines
from server.daemon import running_daemons as module
from server.daemon.run import running_engine
from server.daemon.running_daemons import RunningDaemon, announce, running_daemons
from server.demo import EMBEDDER_NAME, demo_models
from tests.server.support import served_model

ANNOUNCER = """
import pathlib, sys
from server.daemon.running_daemons import announce
with announce(pathlib.Path(sys.argv[1]), []):
    print("announced", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The private folder of a daemon to be."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "penstock-abcdefgh"
    folder.mkdir(mode=0o700)
    return folder


def test_a_daemon_is_found_while_its_announcement_lasts(folder: Path) -> None:
    assert running_daemons() == []
    model = served_model("writer", "generate", folder, f"ipc://{folder}/0", vocab_size=9)
    with announce(folder, [model]):
        assert running_daemons() == [RunningDaemon(os.getpid(), (model,))]
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
    assert f'"pid":{process.pid},' in (folder / "running.json").read_text()
    assert running_daemons() == []


def test_a_daemon_that_somebody_looks_for_while_it_starts(folder: Path) -> None:
    """Whoever looks holds the lock for a moment; that stops no start."""
    looking = (folder / "running.json").open("w")
    fcntl.flock(looking, fcntl.LOCK_SH)
    gone = threading.Timer(0.2, looking.close)
    gone.start()
    with announce(folder, []):
        assert looking.closed
        assert [daemon.pid for daemon in running_daemons()] == [os.getpid()]
    gone.join()


def test_what_is_no_daemon_of_this_user_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "penstock-notes").mkdir()
    (folder.parent / "penstock-file").touch()
    starting = folder.parent / "penstock-starting"
    starting.mkdir()
    with announce(folder, []), announce(starting, []):
        (starting / "running.json").write_text('{"pid":')
        assert [daemon.pid for daemon in running_daemons()] == [os.getpid()]
        monkeypatch.setattr(module.os, "getuid", lambda: os.geteuid() + 1)
        assert running_daemons() == []


async def test_an_engine_without_http_is_found_and_traced() -> None:
    async with running_engine(demo_models()[EMBEDDER_NAME]) as engine:
        (daemon,) = [daemon for daemon in running_daemons() if engine.model in daemon.models]
        assert daemon.pid == os.getpid()
        endpoints = {"model": engine.model.engine.client_endpoint}
        trace = asyncio.create_task(asyncio.to_thread(trace_engines, endpoints, 0.5))
        await asyncio.sleep(0.2)
        await engine.client.encode(VectorsCall, texts=["One text", "and another"])
        steps = (await trace)["model"]
    assert sum(step.rows for step in steps) == 2
    assert all(step.prompt_tokens == step.tokens > 0 for step in steps)
    assert engine.model not in [model for daemon in running_daemons() for model in daemon.models]
