"""Daemons are found by their private folders, and only while they run."""

import asyncio
import fcntl
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from engine_core.client.trace_client import trace_engines
from server.daemon.run import (
    RunningDaemon,
    announce,
    private_folder,
    running_daemons,
    running_engine,
    sweep_private_folders,
)
from server.demo import EMBEDDER_NAME, demo_models
from server.models import model_setup
from server.models.model_setup import EngineOptions
from tests.e2e.daemon import children_of
from tests.server.support import served_model

ANNOUNCER = """
import sys
from server.daemon.run import announce, private_folder
with private_folder() as (folder, file):
    announce(file, [])
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where private folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def killed_daemon(temporary: Path) -> Path:
    """The folder that a daemon leaves behind that is killed."""
    command = [sys.executable, "-c", ANNOUNCER]
    environment = os.environ | {"TMPDIR": str(temporary)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().decode().strip())
        assert [daemon.pid for daemon in running_daemons()] == [process.pid]
        sweep_private_folders()
        assert folder.exists()
        process.kill()
    return folder


def age(folder: Path) -> None:
    """Let a folder look as if nothing had happened in it for two minutes."""
    then = time.time() - 120
    os.utime(folder / "running.json", (then, then))


def test_a_daemon_is_found_while_its_folder_exists() -> None:
    assert running_daemons() == []
    with private_folder() as (folder, file):
        assert folder.stat().st_mode & 0o777 == 0o700
        model = served_model("writer", "generate", folder, f"ipc://{folder}/0", vocab_size=9)
        assert running_daemons() == []
        announce(file, [model])
        assert running_daemons() == [RunningDaemon(os.getpid(), (model,))]
    assert running_daemons() == []
    assert not folder.exists()


def test_a_daemon_that_was_killed_is_not_found_and_its_folder_is_swept(temporary: Path) -> None:
    """Its process id may be another's by now."""
    folder = killed_daemon(temporary)
    assert "pid" in (folder / "running.json").read_text()
    assert running_daemons() == []
    sweep_private_folders()
    assert folder.exists(), "it may be about to be locked"
    age(folder)
    sweep_private_folders()
    assert not folder.exists()


def test_a_daemon_that_starts_keeps_its_folder() -> None:
    with private_folder() as (folder, _):
        age(folder)
        sweep_private_folders()
        assert folder.exists()


def test_a_daemon_that_somebody_looks_for_while_it_starts(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks holds the lock for a moment; that stops no start."""
    folder = temporary / "penstock-abcdefgh"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(folder))
    looking = (folder / "running.json").open("w")
    fcntl.flock(looking, fcntl.LOCK_SH)
    gone = threading.Timer(0.2, looking.close)
    gone.start()
    with private_folder() as (_, file):
        assert looking.closed
        announce(file, [])
        assert [daemon.pid for daemon in running_daemons()] == [os.getpid()]
    gone.join()


def test_what_is_no_daemon_of_this_user_is_passed_over(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary / "penstock-notes").mkdir()
    (temporary / "penstock-file").touch()
    anothers = killed_daemon(temporary)
    with private_folder() as (_, file), private_folder() as (_, starting):
        age(anothers)
        announce(file, [])
        starting.write(b'{"pid":')
        assert [daemon.pid for daemon in running_daemons()] == [os.getpid()]
        monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        assert running_daemons() == []
        sweep_private_folders()
    assert {path.name for path in temporary.iterdir()} == {
        *("penstock-notes", "penstock-file", anothers.name)
    }


async def test_copies_run_where_they_are_bound_to(monkeypatch: pytest.MonkeyPatch) -> None:
    own = sorted(os.sched_getaffinity(0))
    cores = [own[:1], own[-1:]]
    monkeypatch.setattr(model_setup, "cores_of_copy", lambda copy, _: tuple(cores[copy]))
    options = EngineOptions(log_level="warning", data_parallel_size=2)
    async with running_engine(demo_models()[EMBEDDER_NAME], options):
        workers = children_of(os.getpid())["workers"]
        assert sorted(sorted(os.sched_getaffinity(worker)) for worker in workers) == cores


@pytest.mark.long
async def test_an_engine_without_http_is_found_and_traced() -> None:
    async with running_engine(demo_models()[EMBEDDER_NAME]) as engine:
        (daemon,) = [daemon for daemon in running_daemons() if engine.model in daemon.models]
        assert daemon.pid == os.getpid()
        endpoints = {"model": engine.model.engine.client_endpoint}
        trace = asyncio.create_task(asyncio.to_thread(trace_engines, endpoints, 0.5))
        await asyncio.sleep(0.2)
        await engine.client.encode(texts=["One text", "and another"])
        steps = (await trace)["model"]
    assert sum(step.rows for step in steps) == 2
    assert all(step.prompt_tokens == step.tokens > 0 for step in steps)
    assert engine.model not in [model for daemon in running_daemons() for model in daemon.models]
